"""MNIST: read from the files a person has, or fetched from a public mirror."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ipg.data.arrays import array_trouble, check_npz
from ipg.data.errors import DataError, MissingError
from ipg.data.idx import read_idx
from ipg.files import replacing

__all__ = ["Digits", "default_path", "fetch", "read"]

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
TRAIN, TEST = 60_000, 10_000
_REMEDY = "fetch MNIST with `ipg data fetch mnist`, or set IPG_MNIST to an .npz or a folder of idx files"

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that have come and, where the mirror says, the bytes in all."""


@dataclass(frozen=True)
class Digits:
    """Handwritten digits, those of the training part first."""

    images: Tensor  # (N, 28, 28), uint8
    labels: Tensor  # (N,), int64; 0 to 9
    train: int
    """How many of them are the training part."""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 3 or self.images.shape[1:] != (28, 28):
            raise DataError(
                f"MNIST images must be uint8 of shape (N, 28, 28), got {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"MNIST labels must be int64 of shape ({len(self.images)},), one an image, "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        if not 0 < self.train <= len(self.images):
            raise DataError(f"train={self.train} is out of range: there are {len(self.images)} images")
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) <= 9:
            raise DataError(f"MNIST labels must lie in 0…9, got {int(self.labels.min())}…{int(self.labels.max())}")


def default_path() -> Path:
    """Where MNIST is looked for: the environment variable `IPG_MNIST`, else `~/.cache/ipg/mnist`."""
    return Path(os.environ.get("IPG_MNIST") or Path("~/.cache/ipg/mnist")).expanduser()


def read(path: str | PathLike[str] | None = None) -> Digits:
    """Read MNIST.

    Args:
        path: an .npz with `x_train y_train x_test y_test`, or a folder with the four idx files, plain or gzipped, under
            either of their names (`train-images-idx3-ubyte`, `train-images.idx3-ubyte`). Default: `default_path()`.

    Raises:
        DataError: something is missing, truncated, corrupt, or not MNIST.
    """
    place = default_path() if path is None else Path(path).expanduser()
    if not place.exists():
        raise MissingError(f"there is no MNIST at {place}: {_REMEDY}")
    x_train, y_train, x_test, y_test = _read_folder(place) if place.is_dir() else _read_npz(place)
    for part, images, labels, count in (("training", x_train, y_train, TRAIN), ("test", x_test, y_test, TEST)):
        if tuple(images.shape) != (count, 28, 28) or tuple(labels.shape) != (count,):
            raise DataError(
                f"{place} is not MNIST: its {part} part must have images ({count}, 28, 28) and labels ({count},), "
                f"got {tuple(images.shape)} and {tuple(labels.shape)}"
            )
    return Digits(torch.cat([x_train, x_test]), torch.cat([y_train, y_test]).long(), train=TRAIN)


def fetch(
    folder: str | PathLike[str] | None = None, *, progress: Progress | None = None, timeout: float = 30.0
) -> Path:
    """Download MNIST's four files into `folder`, those left out that are there already, and check each.

    A file takes its name only when it is complete and its checksum is right, so a broken download leaves nothing.

    Args:
        folder: made where missing. Default: `default_path()`.
        progress: told of every block that arrives.
        timeout: seconds a mirror may stay silent.

    Returns:
        The folder, for `read`.

    Raises:
        DataError: no mirror gave a file, for instance because there is no network.
    """
    place = default_path() if folder is None else Path(folder).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, md5 in MD5.items():
            target = place / name
            if not target.exists() or _md5(target.read_bytes()) != md5:
                _fetch_one(target, md5, progress, timeout)
    except OSError as error:
        raise DataError(f"{place} cannot hold MNIST's files: {error}") from error
    return place


def _fetch_one(target: Path, md5: str, progress: Progress | None, timeout: float) -> None:
    failures = []
    for mirror in MIRRORS:
        try:
            data = _download(mirror + target.name, target.name, progress, timeout)
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            failures.append(f"{mirror}: {error}")
            continue
        if _md5(data) == md5:
            with replacing(target) as part:
                part.write_bytes(data)
            return
        failures.append(f"{mirror}: wrong checksum")
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(failures)}). Check the network, or put MNIST's four files "
        f"into {target.parent} yourself, or set IPG_MNIST to where they are."
    )


def _download(url: str, name: str, progress: Progress | None, timeout: float) -> bytes:
    data = bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while block := response.read(1 << 16):
            data += block
            if progress is not None:
                progress(name, len(data), total)
    return bytes(data)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _read_folder(folder: Path) -> list[Tensor]:
    return [read_idx(_find(folder, name.removesuffix(".gz"))) for name in MD5]


def _find(folder: Path, name: str) -> Path:
    """The file called `name` or, as some archives have it, with a dot for the last hyphen but one; plain or gzipped."""
    stems = (name, name.replace("-idx", ".idx"))
    for candidate in (folder / (stem + suffix) for stem in stems for suffix in ("", ".gz")):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder} has no {name} (nor {stems[1]}, nor either with .gz): {_REMEDY}")


def _read_npz(path: Path) -> list[Tensor]:
    keys = ("x_train", "y_train", "x_test", "y_test")
    try:
        check_npz(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = [archive[key] for key in keys]
    except KeyError as error:
        raise DataError(f"{path} is not MNIST: {error}; expected {', '.join(keys)}") from error
    except Exception as error:  # damaged files make NumPy and zipfile stumble in many ways
        raise DataError(f"{path} cannot be read as an .npz: {array_trouble(error)}; get the file again") from error
    for key, array in zip(keys, arrays, strict=True):
        if array.dtype != np.uint8 and (key.startswith("x") or array.dtype.kind not in "ui"):
            raise DataError(f"{path} is not MNIST: {key} must be uint8, got {array.dtype}")
    return [torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.int64)) for array in arrays]
