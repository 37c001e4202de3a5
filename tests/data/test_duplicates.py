import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.data import duplicates
from ipg.data.decode import decode
from ipg.data.duplicates import identical, similar
from ipg.data.sources import FolderSource


def test_files_of_the_same_bytes(tmp_path: Path, put) -> None:
    names = ["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"]
    for name, data in zip(names, (b"x", b"y", b"x", b"z", b"x"), strict=True):
        put(tmp_path / name, data)
    assert identical(FolderSource(tmp_path), names) == [[0, 2, 4]]


def test_a_checksum_alone_proves_nothing(tmp_path: Path, put) -> None:
    first, second = b"plumless", b"buckeroo"  # of one CRC-32
    put(tmp_path / "a.jpg", first)
    put(tmp_path / "b.jpg", second)
    source = FolderSource(tmp_path)
    assert source.stamps(["a.jpg"]) == source.stamps(["b.jpg"])
    assert identical(source, ["a.jpg", "b.jpg"]) == []


def test_files_that_cannot_be_read_are_like_nothing_else(tmp_path: Path) -> None:
    assert identical(FolderSource(tmp_path), ["a.jpg", "b.jpg"]) == []


def test_copies_saved_anew_look_the_same(picture) -> None:
    original = picture(1, size=(300, 200))
    image = Image.open(io.BytesIO(original))
    small, jpeg = io.BytesIO(), io.BytesIO()
    image.resize((150, 100)).save(small, "PNG")
    image.save(jpeg, "JPEG", quality=60)
    files = [picture(2), original, picture(3), small.getvalue(), jpeg.getvalue(), picture(4)]
    images = torch.from_numpy(np.stack([decode(data, size=64) for data in files]))
    assert similar(images) == [[1, 3, 4]]


def each_with_each(images: torch.Tensor) -> list[list[int]]:
    """The sets by their definition: thumbnails of 16 x 16, every image against every later one."""
    grey = images.double().mean(dim=1).reshape(len(images), 16, -1, 16, images.shape[-1] // 16).mean(dim=(2, 4))
    contrast = grey.reshape(-1, 8, 2, 8, 2).mean(dim=(2, 4)).flatten(1).std(dim=1)
    set_of: dict[int, int] = {}
    for one in range(len(grey)):
        for other in range(one + 1, len(grey)):
            apart = float((grey[one] - grey[other]).norm()) / 16
            if contrast[one] > 8 and contrast[other] > 8 and apart < 0.08 * contrast[one]:
                set_of[other] = set_of.setdefault(one, one)
    return sorted(sorted(row for row in set_of if set_of[row] == name) for name in set(set_of.values()))


def test_the_order_of_brightness_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_ROWS", 7)
    monkeypatch.setattr(duplicates, "_COLUMNS", 11)
    noise = np.random.default_rng(0)
    blocks = noise.integers(0, 256, (40, 1, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)
    images = (blocks * noise.uniform(0.1, 1, (40, 1, 1, 1))).repeat(3, axis=1).repeat(4, axis=0)
    images = (images + noise.normal(0, 8, images.shape) + noise.uniform(-4, 4, (160, 1, 1, 1))).clip(0, 255)
    images = torch.from_numpy(images[noise.permutation(160)].astype(np.uint8))
    found = similar(images)
    assert found == each_with_each(images)
    assert 10 < len(found) < 60


def test_plain_images_are_passed_over() -> None:
    assert similar(torch.full((4, 3, 32, 32), 200, dtype=torch.uint8)) == []


def test_different_images_are_not_alike(picture) -> None:
    images = torch.from_numpy(np.stack([decode(picture(number), size=32) for number in range(200)]))
    assert similar(images) == []
