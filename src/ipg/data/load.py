"""Data sets by name."""

from __future__ import annotations

from os import PathLike
from typing import Protocol

from ipg.data import colored_fashion, colored_mnist
from ipg.data.table import ImageTable

__all__ = ["DATASETS", "load"]


class Loader(Protocol):
    """Loads one data set; None stands for its own default."""

    def __call__(self, path: str | PathLike[str] | None, size: int | None, seed: int) -> ImageTable:
        """The data set as a table."""
        ...


def _fashion(protocol: colored_fashion.Protocol) -> Loader:
    def load(path: str | PathLike[str] | None, size: int | None, seed: int) -> ImageTable:
        if path is not None:
            raise ValueError(f"coloured fashion is embedded and takes no path, got {str(path)!r}; leave it out")
        return colored_fashion.load(protocol=protocol, size=14 if size is None else size, seed=seed)

    return load


def _mnist(protocol: colored_mnist.Protocol) -> Loader:
    def load(path: str | PathLike[str] | None, size: int | None, seed: int) -> ImageTable:
        return colored_mnist.load(path, protocol=protocol, size=size, seed=seed)

    return load


DATASETS: dict[str, Loader] = {
    "colored_fashion": _fashion("perfect"),
    "colored_fashion_noisy": _fashion("noisy"),
    "colored_mnist": _mnist("paper"),
    "colored_mnist_clean": _mnist("clean"),
    "colored_mnist_train_noise": _mnist("train_noise"),
    "colored_mnist_irm": _mnist("irm"),
}


def load(name: str, *, path: str | PathLike[str] | None = None, size: int | None = None, seed: int = 0) -> ImageTable:
    """Load a data set by its name, hyphens allowed for underscores.

    Args:
        name: one of `DATASETS`.
        path: where its files lie; the data set's own default if left out. Embedded data takes none.
        size: the images' side in pixels; the data set's own default if left out.
        seed: of whatever the data set draws (splits, noise, colours).
    """
    loader = DATASETS.get(name.replace("-", "_"))
    if loader is None:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(DATASETS)}")
    return loader(path, size, seed)
