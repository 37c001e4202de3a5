import csv
import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.data.mnist import Digits, read

Picture = Callable[..., bytes]


@pytest.fixture(scope="session")
def mnist(mnist_path: Path) -> Digits:
    """The real MNIST, where it is at hand."""
    return read(mnist_path)


@pytest.fixture(scope="session")
def digits() -> Digits:
    """As many digits as MNIST has, of noise."""
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(1, 256, (70_000, 28, 28), dtype=torch.uint8, generator=generator)
    return Digits(images, torch.randint(10, (70_000,), generator=generator), train=60_000)


@pytest.fixture(autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the caches or data sets of the user or of another test."""
    monkeypatch.setenv("IPG_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("IPG_DATA", str(tmp_path_factory.mktemp("none")))


@pytest.fixture(scope="session")
def picture() -> Picture:
    """Makes the bytes of an image file; another number, another image."""

    def make(
        number: int = 0, *, size: tuple[int, int] = (24, 16), kind: str = "PNG", mode: str = "RGB", **options
    ) -> bytes:
        noise = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(noise).resize(size, Image.Resampling.BILINEAR).convert(mode)
        buffer = io.BytesIO()
        image.save(buffer, format=kind, **options)
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def put() -> Callable[[Path, bytes], Path]:
    """Writes a file, with the folders above it."""

    def write(path: Path, data: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="session")
def zipped() -> Callable[..., Path]:
    """Makes a zip archive of files by name."""

    def make(path: Path, files: dict[str, bytes], *, deflated: bool = False) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path

    return make


@pytest.fixture(scope="session")
def write_csv() -> Callable[..., Path]:
    """Writes a table of rows below the names of its columns."""

    def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return path

    return write
