"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Protocol

from ipg.data import celeba, colored_fashion, colored_mnist, folder, waterbirds
from ipg.data.doubts import too_many_labels
from ipg.data.errors import DataError, MissingError
from ipg.data.listing import Listing
from ipg.data.names import is_own
from ipg.data.reading import Reading
from ipg.data.remembering import recalled
from ipg.data.table import ImageTable
from ipg.words import did_you_mean

__all__ = ["DATASETS", "list_files", "load"]

Where = str | PathLike[str] | None


class Loader(Protocol):
    """Loads one data set; None stands for its own default."""

    def __call__(self, path: Where, size: int | None, seed: int) -> ImageTable:
        """The data set as a table."""
        ...


Reader = Callable[[Where, Reading], Listing]
"""Lists the files of a data set, from its path and, for one's own, how it is to be read."""
OWN = "folder"
"""The name of one's own images, whose place is said apart."""


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
        return reader(path, Reading()).table(size)

    return load


def _waterbirds(release: str, *, reverse: bool) -> Reader:
    return lambda path, reading: waterbirds.read(release, path, reverse=reverse)


def _celeba(name: str, task: tuple[str, str] = celeba.DEFAULT) -> Reader:
    return lambda path, reading: celeba.read(name, path, task=task)


def _folder(path: Where, reading: Reading) -> Listing:
    if path is None:
        raise MissingError(
            "the data set folder is your own images: say where they are with --data-path, or give their path in the "
            "place of the word folder"
        )
    return folder.read(path, reading=reading)


READERS: dict[str, Reader] = {
    "waterbirds100": _waterbirds("waterbirds100", reverse=False),
    "waterbirds100_reverse": _waterbirds("waterbirds100", reverse=True),
    "waterbirds95": _waterbirds("waterbirds95", reverse=False),
    "waterbirds95_reverse": _waterbirds("waterbirds95", reverse=True),
    "waterbirds": _waterbirds("waterbirds", reverse=False),
    "waterbirds_reverse": _waterbirds("waterbirds", reverse=True),
    "celeba": _celeba("celeba"),
    "celeba_subset": _celeba("celeba_subset"),
    OWN: _folder,
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


def load(
    name: str | Path,
    *,
    path: Where = None,
    size: int | None = None,
    seed: int = 0,
    reading: Reading | None = None,
    before: Callable[[int], None] | None = None,
) -> ImageTable:
    """Load a data set to train on or to test with.

    Args:
        name: one of `DATASETS`, hyphens allowed for underscores; `celeba:LABEL/SHORTCUT` for other attributes than
            Blond_Hair and Male; or the path of a folder, zip or table (CSV, Parquet) of one's own images.
        path: where its files lie; the data set's own default if left out. Embedded data takes none. For a table of
            one's own: the folder that its paths are relative to, or the table itself if it has moved.
        size: the images' side in pixels; the data set's own default if left out.
        seed: of whatever the data set draws (noise, colours, and splits where these are drawn with them).
        reading: how one's own images are read; a split that they do not bring is drawn by its `split_seed`.
        before: told the side of one's own images before they are decoded, which may take long: it may raise.

    Raises:
        DataError: the data cannot be used; also where its labels cannot be labels.
    """
    how, called = reading or Reading(), os.fspath(name)
    key = ("table", called, None if path is None else os.fspath(path), size, seed, how)
    return recalled(key, lambda: _load(called, path, size, seed, how, before), lambda table: table.images.nbytes)


def _load(
    name: str, path: Where, size: int | None, seed: int, how: Reading, before: Callable[[int], None] | None
) -> ImageTable:
    plain = name.replace("-", "_")
    if plain in DATASETS and plain != OWN:
        _check_columns(name, how)
        with _looking_here(name, path):
            return DATASETS[plain](path, size, seed)
    listing = _listed(name, path, how)
    if (doubt := too_many_labels(listing)) is not None:
        raise DataError(f"{listing.source.place}: {doubt}")
    if before is not None:
        before(listing.size if size is None else size)
    return listing.table(size)


def list_files(name: str, *, path: Where = None, reading: Reading | None = None) -> Listing | None:
    """The files of a data set before they are decoded; None for data sets that are no files of images."""
    plain = name.replace("-", "_")
    return None if plain in DATASETS and plain not in READERS else _listed(name, path, reading or Reading())


def _listed(name: str, path: Where, reading: Reading) -> Listing:
    reader = READERS.get(name.replace("-", "_"))
    if not is_own(name):
        _check_columns(name, reading)
    with _looking_here(name, path):
        return (reader or _reader(name))(path, reading)


def _check_columns(name: str, reading: Reading) -> None:
    """ValueError where columns are named of a data set that has its own."""
    if reading.renamed:
        raise ValueError(f"{name} has columns of its own: leave --{next(iter(reading.renamed))}-column out")


@contextmanager
def _looking_here(name: str, path: Where) -> Iterator[None]:
    """Where the files of a data set are missing: say how a folder here is meant that is called like it."""
    try:
        yield
    except MissingError as error:
        here = name.partition(":")[0]
        if path is not None or not Path(here).exists():
            raise
        kind = "" if name == OWN else f", or --data-path {here} if it holds that data set"
        raise MissingError(
            f"{error}. There is a {here} here: write ./{here} if it is images of your own{kind}"
        ) from None


def _reader(name: str) -> Reader:
    """The reader of a data set that is not in `DATASETS`: CelebA with attributes of one's choice, or a path."""
    base, colon, task = name.partition(":")
    if colon and (base := base.replace("-", "_")) in celeba.SIZES:
        label, slash, shortcut = task.partition("/")
        if not (label and slash and shortcut):
            raise ValueError(f"{name!r}: expected the label and the shortcut, e.g. {base}:Smiling/Male")
        return _celeba(base, (label, shortcut))
    if not (folder.is_table(name) or os.sep in name or "/" in name or Path(name).expanduser().exists()):
        here = (each.name for each in Path().iterdir() if each.is_dir() or folder.is_table(each))
        known = f"there are {', '.join(DATASETS)}, and paths of your own folders and tables, but no {name} here"
        raise ValueError(f"unknown data set {name!r}; {did_you_mean(name, [*DATASETS, *here]) or known}")
    return lambda path, reading: _own(name, path, reading)


def _own(name: str, path: Where, reading: Reading) -> Listing:
    if path is None and not Path(name).expanduser().exists():
        what = "no table" if folder.is_table(name) else "nothing at"
        raise DataError(f"there is {what} {name}; data is the name of a data set, or the path of images or their table")
    if path is not None and folder.is_table(name) and not folder.is_table(path):
        return folder.read(name, images=path, reading=reading)
    return folder.read(name if path is None else path, reading=reading)
