"""People's own images: a folder for each class, or a table with a path and a label a row.

Folders: `photos/cat/…`, `photos/dog/…`, or with splits above, `photos/train/cat/…`; also all in one zip. Their images
have no attribute.

Table (CSV, TSV or Parquet): `path`, relative to the table's folder, and `label`; optionally `attribute`, what must not
matter, with any number of values, or `group`; and `split` (train, validation, test, or 0, 1, 2). A `group` numbered
label x (number of attributes) + attribute, as group DRO does, is taken apart; any other is taken for the attribute.

Splits that are missing are drawn from the training images, stratified by label and attribute.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ipg.data.columns import TABLE_SUFFIXES, Columns, read_columns
from ipg.data.errors import DataError, ProblemsError
from ipg.data.listing import Listing, find_files
from ipg.data.sources import FolderSource, Source, ZipSource, is_image
from ipg.data.splits import SHARES, SPLIT_NAMES, SPLITS, draw_missing

__all__ = ["is_table", "read"]

COLUMNS = ("path", "label", "attribute", "group", "split")
SIZE = 224
MOST_VALUES = 10_000
"""Values of an attribute that groups may number; beyond, their numbers are names."""
MOST_DIGITS = 1000
"""Digits of what is taken for a number; Python refuses to read much longer ones."""
_SPLIT_FOLDERS = {name for name in SPLIT_NAMES if not name.isdecimal()}  # 0 and 1 are classes
_LAYOUT = "expected a folder for each class with its images in it, or a CSV with the columns path and label"


def is_table(path: str | PathLike[str]) -> bool:
    """Whether a path is a table by its name."""
    return str(path).lower().endswith(TABLE_SUFFIXES)


def read(path: str | PathLike[str], *, images: str | PathLike[str] | None = None, seed: int = 0) -> Listing:
    """Read images of one's own.

    Args:
        path: the folder or zip with a folder for each class, or the table.
        images: for a table, the folder or zip that its paths are relative to; its own folder where not given.
        seed: of the splits that are missing.

    Raises:
        DataError: nothing is there, or it is not laid out like this; all that is wrong is said at once.
    """
    place = Path(path).expanduser()
    if is_table(place):
        return _read_table(place, Path(images).expanduser() if images is not None else place.parent, seed)
    if not place.exists():
        raise DataError(f"there is nothing at {place}; {_LAYOUT}")
    if place.is_file() and place.suffix.lower() != ".zip":
        raise DataError(f"{place} is neither a folder nor a zip or table; {_LAYOUT}")
    return _read_folders(place, FolderSource(place) if place.is_dir() else ZipSource([place]), seed)


def _read_table(place: Path, home: Path, seed: int) -> Listing:
    columns = read_columns(place)
    columns.require("path", "label")
    extra = [name for name in columns.values if name not in COLUMNS]
    problems = [
        f"{place} has a column {name!r}; is {near[0]} meant?"
        for name in extra
        if (near := difflib.get_close_matches(name.lower(), [c for c in COLUMNS if c not in columns], n=1, cutoff=0.75))
    ]
    if "attribute" in columns and "group" in columns:
        problems.append(f"{place} has both attribute and group; keep one of them")
    if not home.exists():
        raise DataError(f"there is no folder {home} for the images of {place}")
    for name in ("label", "attribute", "group"):
        problems += [
            f"{columns.where(row)}: no {name}" for row, text in enumerate(columns.values.get(name, ())) if not text
        ]
    split = None
    if "split" in columns:
        split = torch.tensor([SPLIT_NAMES.get(text.lower(), -1) for text in columns["split"]])
        problems += [
            f"{columns.where(row)}: split is {columns['split'][row]!r}, expected {', '.join(SPLITS)}"
            for row in torch.nonzero(split < 0).flatten().tolist()
        ]
    source: Source = FolderSource(home) if home.is_dir() else ZipSource([home])
    files: tuple[str, ...] = ()
    try:
        files = find_files(source, columns["path"], columns.where)
    except ProblemsError as error:
        problems += error.problems
    if problems:
        raise ProblemsError(problems)
    label, classes = _numbered(columns["label"])
    attribute, attributes = _attribute(columns, label, len(classes))
    notes = [f"columns that are not used: {', '.join(extra)}"] if extra else []
    return _listing(place, source, files, (label, classes), (attribute, attributes), split, seed, notes)


def _read_folders(place: Path, source: Source, seed: int) -> Listing:
    names = [name for name in source.names() if is_image(name)]
    paths = [name.split("/") for name in names]
    deep = all(len(parts) > 2 for parts in paths)
    if deep and isinstance(source, ZipSource) and len({parts[0] for parts in paths}) == 1:
        paths = [parts[1:] for parts in paths]  # an archive of one folder
        deep = all(len(parts) > 2 for parts in paths)
    tops = {parts[0].lower() for parts in paths}
    split = None
    if paths and deep and tops <= _SPLIT_FOLDERS:
        split = torch.tensor([SPLIT_NAMES[parts[0].lower()] for parts in paths])
        paths = [parts[1:] for parts in paths]
    if problems := [
        f"{place}: {name} is in no folder of a class"
        for name, parts in zip(names, paths, strict=True)
        if len(parts) < 2
    ]:
        raise ProblemsError(
            [f"{place} has no folders of classes; {_LAYOUT}"] if len(problems) == len(names) else problems
        )
    if not names:
        tables = sorted(str(inner) for inner in place.glob("*") if is_table(inner)) if place.is_dir() else []
        raise DataError(f"{place} has no image in it; " + (f"is {tables[0]} meant?" if tables else _LAYOUT))
    label, classes = _numbered([parts[0] for parts in paths])
    nothing = torch.zeros_like(label), ("all",)
    return _listing(place, source, tuple(names), (label, classes), nothing, split, seed, [])


def _listing(
    place: Path,
    source: Source,
    files: tuple[str, ...],
    label: tuple[Tensor, tuple[str, ...]],
    attribute: tuple[Tensor, tuple[str, ...]],
    split: Tensor | None,
    seed: int,
    notes: Sequence[str],
) -> Listing:
    if len(label[1]) < 2:
        raise DataError(f"{place}: every image has the label {label[1][0]!r}; a classifier needs two classes or more")
    if split is not None and not bool((split == 0).any()):
        raise DataError(f"{place} has no training image; give some rows the split train, or leave the column out")
    given = torch.zeros_like(label[0]) if split is None else split
    made = draw_missing(given, label[0] * len(attribute[1]) + attribute[0], source.stamps(files), seed=seed)
    drawn = [f"{SPLITS[number]} ({share:.0%})" for number, share in SHARES.items() if not bool((given == number).any())]
    if drawn:
        notes = [*notes, f"drawn by seed {seed} from the training images: {' and '.join(drawn)}"]
    listing = Listing(
        name=place.name.partition(".")[0]
        if is_table(place)
        else place.stem
        if place.is_file()
        else place.resolve().name,
        source=source,
        files=files,
        label=label[0],
        attribute=attribute[0],
        split=made,
        content=label[0],
        classes=label[1],
        attributes=attribute[1],
        size=SIZE,
        fit="crop",
        notes=tuple(notes),
    )
    return listing if drawn else listing.by_split()  # a draw must not decide the order of the cache


def _numbered(texts: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers for texts and the texts by number, in the order of their values where all are whole numbers."""
    names = sorted(set(texts), key=(lambda text: (int(text), text)) if _are_whole(texts) else (lambda text: (0, text)))
    numbers = {name: number for number, name in enumerate(names)}
    return torch.tensor([numbers[text] for text in texts]), tuple(names)


def _attribute(columns: Columns, label: Tensor, classes: int) -> tuple[Tensor, tuple[str, ...]]:
    if "group" in columns and _are_whole(columns["group"]):
        numbers = [int(text) for text in columns["group"]]
        values = -(-(max(numbers) + 1) // classes)
        if min(numbers) >= 0 and values <= MOST_VALUES and [n // values for n in numbers] == label.tolist():
            return torch.tensor([n % values for n in numbers]), tuple(str(value) for value in range(values))
    name = next((name for name in ("attribute", "group") if name in columns), None)
    return _numbered(columns[name]) if name else (torch.zeros_like(label), ("all",))


def _are_whole(texts: Sequence[str]) -> bool:
    return all(text.removeprefix("-").isdecimal() and len(text) < MOST_DIGITS for text in texts)
