"""What the cases of rubbish start from: one small valid file of every kind that the program reads."""

from __future__ import annotations

import csv
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TextIO

import numpy as np
from PIL import Image
from pyarrow import parquet
from pyarrow.csv import read_csv as csv_table

__all__ = ["CLASSES", "make", "pictures"]

CLASSES = ("cat", "dog")
CONFIG = """\
data = "photos.csv"
size = 16
model = "small_cnn"
method = "ipg"
options = {}
epochs = 1
batch = 8
learning_rate = 1e-3
schedule = "cosine"
pairs = "pairs.csv"
pair_batch = 4
alpha = 0.1
margin = "0.5x"
class_weighted = true
selection = "last"
seed = 3
"""
STUDY = """\
dataset = "photos.csv"
seeds = 2
metrics_split = "test"
[base]
size = 16
model = "small_cnn"
epochs = 1
batch = 8
pairs = "pairs.csv"
pair_batch = 4
[[arm]]
method = "erm"
protocol = "paper"
[[arm]]
method = "ipg"
protocol = "tuned"
config = { alpha = 0.2 }
"""


def make(folder: Path) -> None:
    """Fill `folder`; every command that a case tries ends well there."""
    pictures(folder)
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for file in sorted((folder / "photos").rglob("*.png")):
            archive.write(file, file.relative_to(folder / "photos"))
    for name in ("photos", "pairs"):
        parquet.write_table(csv_table(folder / f"{name}.csv"), folder / f"{name}.parquet")
    (folder / "run.toml").write_text(CONFIG)
    (folder / "study.toml").write_text(STUDY)
    _arrays(folder)
    _ipg(folder, "train", "--config", "run.toml", "--output", "run")
    shutil.copytree(folder / "run", folder / "stopped")
    for name in ("done", "model.safetensors", "result.json"):
        (folder / "stopped" / name).unlink()
    _ipg(folder, "export", "run", "--format", "torch", "--output", "exported")
    shutil.move(folder / "exported" / "weights.safetensors", folder / "weights.safetensors")
    shutil.rmtree(folder / "exported")
    _ipg(folder, "study", "study.toml", "--results", "results", "--workers", "1")
    shutil.rmtree(folder / "results" / "trials")
    shutil.rmtree(folder / "cache")
    _pickled(folder)


def pictures(folder: Path, count: int = 16) -> None:
    """Twice as many images as `count`, in `photos`, the table of them and that of their pairs."""
    noise = np.random.default_rng(0)
    with _table(folder / "photos.csv") as photos, _table(folder / "pairs.csv") as pairs:
        photo, pair = csv.writer(photos), csv.writer(pairs)
        photo.writerow(["path", "label", "attribute", "split"])
        pair.writerow(["first", "second", "label", "split", "score", "status"])
        for number in range(count):
            label, split = CLASSES[number % 2], ("train", "train", "validation", "test")[number // 2 % 4]
            members = []
            for color in (0, 1):
                pixels = noise.integers(0, 60, (16, 16, 3), dtype=np.uint8)
                pixels[8 * (number % 2) :][:8, :, color] += 180
                place = folder / "photos" / label / f"{number}-{color}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(place)
                members.append(place.relative_to(folder).as_posix())
                photo.writerow([members[-1], label, ("red", "green")[color], split])
            if split != "test":
                pair.writerow([*members, label, split, "0.9", "ok"])


def _arrays(folder: Path) -> None:
    """Digits and opinions as NumPy and MNIST have them; the digits are too few, which is said."""
    digits, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4, dtype=np.uint8)
    np.savez(folder / "mnist.npz", x_train=digits, y_train=labels, x_test=digits, y_test=labels)
    (folder / "idx").mkdir()
    for part in ("train", "t10k"):
        (folder / "idx" / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 0x803, *digits.shape) + digits.tobytes()
        )
        (folder / "idx" / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 4) + labels.tobytes())
    images = np.array([f"photos/{CLASSES[n % 2]}/{n}-{color}.png" for n in range(16) for color in (0, 1)])
    np.savez(folder / "said.npz", image=images, label=np.arange(32) // 2 % 2, attribute=np.arange(32) % 2)


def _pickled(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save({"state_dict": load_file(folder / "weights.safetensors")}, folder / "weights.pth")


def _table(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="")


def _ipg(folder: Path, *line: str) -> None:
    environment = os.environ | {"IPG_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-m", "ipg", *line]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ipg {' '.join(line)} failed on valid files:\n{done.stderr}")
