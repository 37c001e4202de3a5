"""Labelled image files that are not decoded yet: what every reader of a layout makes, and a table is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import torch
from torch import Tensor

from ipg.data.cache import cached_images
from ipg.data.decode import Fit
from ipg.data.errors import DataError, ProblemsError
from ipg.data.sources import Source
from ipg.data.splits import SPLITS
from ipg.data.table import ImageTable

__all__ = ["Listing", "RowsError", "look_for_files", "without_fault"]


@dataclass(frozen=True)
class Listing:
    """N image files with their columns, a row a file; see `ImageTable` for the columns."""

    name: str
    source: Source
    files: tuple[str, ...]
    label: Tensor  # (N,)
    attribute: Tensor  # (N,)
    split: Tensor  # (N,)
    content: Tensor  # (N,)
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    size: int
    """The side of the images where none is asked for."""
    fit: Fit = "squeeze"
    notes: tuple[str, ...] = ()
    """What the reader decided by itself, in sentences."""
    label_column: str | None = None
    """The column of the user's own table that the labels are from."""
    drawn: int | None = None
    """The seed that drew the split; None where the data has one."""
    nested: bool = False
    """Whether an attribute stands for something else under every label."""
    environment: Tensor | None = None  # (N,)
    """None where all images are of one."""

    def by_split(self) -> Listing:
        """The rows sorted by split, so that a split of the memory-mapped images is one piece and is not copied."""
        order = torch.argsort(self.split, stable=True)
        names = ("label", "attribute", "split", "content", *(() if self.environment is None else ("environment",)))
        columns = {name: getattr(self, name)[order] for name in names}
        return replace(self, files=tuple(self.files[row] for row in order.tolist()), **columns)

    def table(self, size: int | None = None) -> ImageTable:
        """The images decoded, from the cache where they were decoded before."""
        side = self.size if size is None else size
        return ImageTable(
            name=self.name,
            images=cached_images(self.source, self.files, size=side, fit=self.fit, what=self.name),
            label=self.label,
            attribute=self.attribute,
            split=self.split,
            environment=torch.zeros_like(self.label) if self.environment is None else self.environment,
            content=self.content,
            splits=SPLITS,
            classes=self.classes,
            attributes=self.attributes,
            names=self.files,
            drawn=self.drawn,
            fit=self.fit,
        )


class RowsError(ProblemsError):
    """Rows of a table that cannot be used; `rest` makes the listing of the others, where there are some."""

    def __init__(self, problems: Sequence[str], rest: Callable[[], Listing] | None = None) -> None:
        super().__init__(problems)
        self.rest = rest


def look_for_files(
    source: Source, names: Sequence[str], where: Callable[[int], str]
) -> tuple[dict[str, int], list[str]]:
    """The rows of the files that are there, by the names they have in `source`, and what is wrong with the others.

    They may be missing, lead out of the data, or be named by two rows; `where` says in which line.
    """
    problems: list[str] = []
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        try:
            found = source.find(name) if name else None
        except DataError as error:
            problems.append(f"{where(row)}: {error}; {_outside(name)}")
            continue
        if found is None:
            problems.append(
                f"{where(row)}: there is no image {name!r} in {source.place}" if name else f"{where(row)}: no path"
            )
        elif found in rows:
            problems.append(f"{where(row)}: {name!r} is there already ({where(rows[found])}); keep one of the rows")
        else:
            rows[found] = row
    return rows, problems


def without_fault(files: Mapping[str, int], *columns: Tensor) -> dict[str, int]:
    """Of the `files`, with their rows, those that have a number in every column: -1 stands for none."""
    known = torch.stack(columns).ge(0).all(dim=0).tolist()
    return {name: row for name, row in files.items() if known[row]}


def _outside(name: str) -> str:
    """What to do about an image that is not inside the data."""
    if PurePath(name).is_absolute():
        return "name a folder that all images are in with --data-path"
    return "paths are relative to the folder of the table, or to --data-path, and may not lead out of it"
