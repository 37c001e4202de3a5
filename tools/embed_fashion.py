"""Make the two files of coloured fashion again: `python tools/embed_fashion.py FOLDER`.

FOLDER holds Fashion-MNIST's `train-images-idx3-ubyte.gz` and `train-labels-idx1-ubyte.gz`, for instance from
Debian's package:

    apt-get download dataset-fashion-mnist
    dpkg-deb -x dataset-fashion-mnist_*.deb unpacked
    python tools/embed_fashion.py unpacked/usr/share/datasets/fashion-mnist

The pixels and labels come out the same everywhere; the bytes of the PNG, and with them its checksum, depend on the
zlib that Pillow was built with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

from ipg.data.idx import read_idx

SEED, COUNT, SIDE, COLUMNS = 0, 20_000, 28, 160
TARGET = Path(__file__).parents[1] / "src" / "ipg" / "data"


def embed(folder: Path, target: Path) -> None:
    """Write the sprite and the facts about it into `target`."""
    images = read_idx(folder / "train-images-idx3-ubyte.gz").numpy()  # (60000, 28, 28)
    labels = read_idx(folder / "train-labels-idx1-ubyte.gz").numpy()  # (60000,)
    chosen = np.random.default_rng(SEED).permutation(len(images))[:COUNT]
    tiles = images[chosen].reshape(COUNT // COLUMNS, COLUMNS, SIDE, SIDE)
    sprite = tiles.transpose(0, 2, 1, 3).reshape(-1, COLUMNS * SIDE)
    png = target / "fashion_mnist_20k.png"
    Image.fromarray(sprite).save(png, optimize=True)
    facts = {
        "title": "20,000 images of the training part of Fashion-MNIST",
        "source": "https://github.com/zalandoresearch/fashion-mnist",
        "license": "MIT, Copyright (c) 2017 Zalando SE, https://tech.zalando.com",
        "permutation": f"numpy.random.default_rng({SEED}).permutation({len(images)})[:{COUNT}]",
        "seed": SEED,
        "side": SIDE,
        "columns": COLUMNS,
        "order": "row by row",
        "sha256": hashlib.sha256(png.read_bytes()).hexdigest(),
        "labels": "".join(map(str, labels[chosen])),
    }
    png.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the idx files lie")
    parser.add_argument("--target", type=Path, default=TARGET, help="where to write (default: src/ipg/data)")
    arguments = parser.parse_args()
    embed(arguments.folder, arguments.target)
