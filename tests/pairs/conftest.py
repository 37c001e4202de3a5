import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from ipg.data import colored_fashion, colored_mnist, folder
from ipg.data.listing import Listing
from ipg.data.mnist import Digits
from ipg.data.table import ImageTable


@pytest.fixture(scope="session")
def fashion() -> ImageTable:
    """Coloured fashion with a perfect shortcut: two of the four groups have training images."""
    return colored_fashion.load()


@pytest.fixture(scope="session")
def table() -> ImageTable:
    """ColoredMNIST of 6,000 noise images, a tenth of them of every digit; all four groups have training images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (6_000, 28, 28), dtype=torch.uint8, generator=generator)
    return colored_mnist.load(Digits(images, torch.arange(6_000) % 10, train=5_000), size=14)


@pytest.fixture(autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the caches or data sets of the user or of another test."""
    monkeypatch.setenv("IPG_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("IPG_DATA", str(tmp_path_factory.mktemp("none")))


@dataclass(frozen=True)
class Shapes:
    """Photographs with masks: discs and crosses, on grass or on sea; in training discs are on grass alone."""

    home: Path
    listing: Listing
    table: ImageTable

    @property
    def masks(self) -> Path:
        return self.home / "masks"

    def rows(self, split: str, label: int | None = None, attribute: int | None = None) -> list[int]:
        found = self.table.indices(split).tolist()
        found = [row for row in found if label is None or int(self.table.label[row]) == label]
        return [row for row in found if attribute is None or int(self.table.attribute[row]) == attribute]

    def name(self, row: int) -> str:
        assert self.table.names is not None
        return self.table.names[row]


def scene(attribute: str, size: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Grass is green and upright, sea is blue and level."""
    wave = 40 * np.sin(np.arange(size) * 2 * np.pi / 8 + generator.uniform(0, 6))
    pattern = np.broadcast_to(wave[None, :] if attribute == "grass" else wave[:, None], (size, size))
    color = np.array([60, 150, 50] if attribute == "grass" else [40, 90, 180]) + generator.integers(-25, 25, 3)
    return np.clip(color + pattern[:, :, None] + generator.normal(0, 3, (size, size, 1)), 0, 255).astype(np.uint8)


def draw(label: str, attribute: str, number: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A photograph and its mask."""
    generator = np.random.default_rng(number)
    y, x = np.mgrid[:size, :size] - size / 2 - generator.uniform(-4, 4, (2, 1, 1))
    mask = x**2 + y**2 < (size / 5) ** 2 if label == "disc" else (abs(x) < size / 10) | (abs(y) < size / 10)
    mask &= (abs(x) < size / 4) & (abs(y) < size / 4)
    image = scene(attribute, size, generator)
    image[mask] = np.clip(np.array([200, 60, 60]) + generator.integers(-30, 30, 3), 0, 255)
    return image, mask


@pytest.fixture
def make_shapes(tmp_path: Path) -> Callable[..., Shapes]:
    """Makes a data set of one's own, as files, with masks."""

    def make(*, train: int = 24, validation: int = 12, test: int = 8, size: int = 48) -> Shapes:
        home = tmp_path / "shapes"
        rows: list[Sequence[str]] = [("path", "label", "attribute", "split")]
        for split, count in (("train", train), ("validation", validation), ("test", test)):
            for number in range(count):
                label = ("disc", "cross")[number % 2]
                attribute = ("grass", "sea")[number % 2 if split == "train" else number // 2 % 2]
                image, mask = draw(label, attribute, len(rows), size)
                name = f"{split}/{label}-{number:02d}.png"
                for pixels, folder_ in ((image, "images"), (mask, "masks")):
                    path = home / folder_ / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(path)
                rows.append((name, label, attribute, split))
        with (home / "labels.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        listing = folder.read(home / "labels.csv", images=home / "images")
        return Shapes(home, listing, listing.table(size))

    return make


@pytest.fixture
def shapes(make_shapes: Callable[..., Shapes]) -> Shapes:
    return make_shapes()
