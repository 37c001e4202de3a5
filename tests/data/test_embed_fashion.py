import gzip
import json
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from modules import load_file
from PIL import Image


@pytest.fixture
def tool(repo_root: Path) -> ModuleType:
    return load_file(repo_root / "tools" / "embed_fashion.py")


def test_sprite_holds_the_first_images_of_the_permutation_row_by_row(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "COUNT", 12)
    monkeypatch.setattr(tool, "COLUMNS", 4)
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (50, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 50, dtype=np.uint8)
    for name, array in (("train-images-idx3-ubyte.gz", images), ("train-labels-idx1-ubyte.gz", labels)):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (tmp_path / name).write_bytes(gzip.compress(header + array.tobytes()))
    tool.embed(tmp_path, tmp_path)
    facts = json.loads((tmp_path / "fashion_mnist_20k.json").read_text())
    with Image.open(tmp_path / "fashion_mnist_20k.png") as picture:
        sprite = np.array(picture)
    chosen = np.random.default_rng(0).permutation(50)[:12]
    assert sprite.shape == (3 * 28, 4 * 28)
    for place, row in enumerate(chosen):
        top, left = 28 * (place // 4), 28 * (place % 4)
        assert np.array_equal(sprite[top : top + 28, left : left + 28], images[row])
        assert facts["labels"][place] == str(labels[row])
