"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Protocol

from ipg.data import celeba, colored_fashion, colored_mnist, folder, waterbirds
from ipg.data.errors import DataError
from ipg.data.listing import Listing
from ipg.data.table import ImageTable

__all__ = ["DATASETS", "list_files", "load"]

Where = str | PathLike[str] | None


class Loader(Protocol):
    """Loads one data set; None stands for its own default."""

    def __call__(self, path: Where, size: int | None, seed: int) -> ImageTable:
        """The data set as a table."""
        ...


Reader = Callable[[Where, int], Listing]
"""Lists the files of a data set, from its path and a seed."""


def _fashion(protocol: colored_fashion.Protocol) -> Loader:
    def load(path: Where, size: int | None, seed: int) -> ImageTable:
        if path is not None:
            raise ValueError(f"coloured fashion is embedded and takes no path, got {str(path)!r}; leave it out")
        return colored_fashion.load(protocol=protocol, size=14 if size is None else size, seed=seed)

    return load


def _mnist(protocol: colored_mnist.Protocol, *, test: int | None = None) -> Loader:
    def load(path: Where, size: int | None, seed: int) -> ImageTable:
        return colored_mnist.load(path, protocol=protocol, size=size, seed=seed, test=test)

    return load


def _decoding(reader: Reader) -> Loader:
    def load(path: Where, size: int | None, seed: int) -> ImageTable:
        return reader(path, seed).table(size)

    return load


def _waterbirds(release: str, *, reverse: bool) -> Reader:
    return lambda path, seed: waterbirds.read(release, path, reverse=reverse)


def _celeba(name: str, task: tuple[str, str] = celeba.DEFAULT) -> Reader:
    return lambda path, seed: celeba.read(name, path, task=task)


def _folder(path: Where, seed: int) -> Listing:
    if path is None:
        raise ValueError("the data set folder is your own images: say where they are with --data-path, or as --data")
    return folder.read(path, seed=seed)


READERS: dict[str, Reader] = {
    "waterbirds100": _waterbirds("waterbirds100", reverse=False),
    "waterbirds100_reverse": _waterbirds("waterbirds100", reverse=True),
    "waterbirds95": _waterbirds("waterbirds95", reverse=False),
    "waterbirds95_reverse": _waterbirds("waterbirds95", reverse=True),
    "waterbirds": _waterbirds("waterbirds", reverse=False),
    "waterbirds_reverse": _waterbirds("waterbirds", reverse=True),
    "celeba": _celeba("celeba"),
    "celeba_subset": _celeba("celeba_subset"),
    "folder": _folder,
}
"""Data sets that are files of images."""

DATASETS: dict[str, Loader] = {
    "colored_fashion": _fashion("perfect"),
    "colored_fashion_noisy": _fashion("noisy"),
    "colored_mnist": _mnist("paper"),
    "colored_mnist_clean": _mnist("clean"),
    "colored_mnist_train_noise": _mnist("train_noise"),
    "colored_mnist_irm": _mnist("irm"),
    "colored_mnist_dair": _mnist("dair"),
    "colored_mnist_test0": _mnist("paper", test=0),
    "colored_mnist_test1": _mnist("paper", test=1),
    "colored_mnist_test2": _mnist("paper", test=2),
    **{name: _decoding(reader) for name, reader in READERS.items()},
}


def load(name: str, *, path: Where = None, size: int | None = None, seed: int = 0) -> ImageTable:
    """Load a data set.

    Args:
        name: one of `DATASETS`, hyphens allowed for underscores; `celeba:LABEL/SHORTCUT` for other attributes than
            Blond_Hair and Male; or the path of a folder, zip or table (CSV, Parquet) of one's own images.
        path: where its files lie; the data set's own default if left out. Embedded data takes none. For a table of
            one's own: the folder that its paths are relative to, or the table itself if it has moved.
        size: the images' side in pixels; the data set's own default if left out.
        seed: of whatever the data set draws (splits, noise, colours).
    """
    loader = DATASETS.get(name.replace("-", "_"))
    if loader is not None:
        return loader(path, size, seed)
    return _decoding(_reader(name))(path, size, seed)


def list_files(name: str, *, path: Where = None, seed: int = 0) -> Listing | None:
    """The files of a data set before they are decoded; None for data sets that are no files of images."""
    plain = name.replace("-", "_")
    if plain in DATASETS and plain not in READERS:
        return None
    return (READERS.get(plain) or _reader(name))(path, seed)


def _reader(name: str) -> Reader:
    """The reader of a data set that is not in `DATASETS`: CelebA with attributes of one's choice, or a path."""
    base, colon, task = name.partition(":")
    if colon and (base := base.replace("-", "_")) in celeba.SIZES:
        label, slash, shortcut = task.partition("/")
        if not (label and slash and shortcut):
            raise ValueError(f"{name!r}: expected the label and the shortcut, e.g. {base}:Smiling/Male")
        return _celeba(base, (label, shortcut))
    if not (folder.is_table(name) or os.sep in name or "/" in name or Path(name).expanduser().exists()):
        raise ValueError(
            f"unknown data set {name!r}; there are {', '.join(DATASETS)}, and paths of your own folders and tables"
        )
    return lambda path, seed: _own(name, path, seed)


def _own(name: str, path: Where, seed: int) -> Listing:
    if path is None and not Path(name).expanduser().exists():
        what = "no table" if folder.is_table(name) else "nothing at"
        raise DataError(f"there is {what} {name}; data is the name of a data set, or the path of images or their table")
    if path is not None and folder.is_table(name) and not folder.is_table(path):
        return folder.read(name, images=path, seed=seed)
    return folder.read(name if path is None else path, seed=seed)
