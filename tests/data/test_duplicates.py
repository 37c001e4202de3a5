import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

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


def test_plain_images_are_passed_over() -> None:
    assert similar(torch.full((4, 3, 32, 32), 200, dtype=torch.uint8)) == []


def test_different_images_are_not_alike(picture) -> None:
    images = torch.from_numpy(np.stack([decode(picture(number), size=32) for number in range(200)]))
    assert similar(images) == []
