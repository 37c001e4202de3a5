"""People's own images: a folder for each class, or a table with a path and a label a row.

Folders: `photos/cat/…`, `photos/dog/…`, or with splits above, `photos/train/cat/…`; also all in one zip. Their images
have no attribute.

Table (CSV, TSV or Parquet): `path`, relative to the table's folder, and `label`; optionally `attribute`, what must not
matter, with any number of values, or `group`, which is taken apart (`groups` says how); `environment`, where the image
comes from; and `split` (train, validation, test, or 0, 1, 2). All but the last and `group` may be called otherwise
(`reading`); case does not matter where it is clear.

Splits that are missing are drawn from the training images, stratified by label and attribute.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ipg.data.columns import TABLE_SUFFIXES, Columns, read_columns
from ipg.data.errors import DataError, ProblemsError
from ipg.data.groups import Attribute, numbered, of_groups
from ipg.data.listing import Listing, RowsError, look_for_files
from ipg.data.reading import Reading, likeliest
from ipg.data.sources import FolderSource, Source, ZipSource, is_image, passed_over
from ipg.data.splits import SHARES, SPLIT_NAMES, SPLITS, draw_missing
from ipg.words import listed, number_of

__all__ = ["is_table", "read"]

COLUMNS = ("path", "label", "attribute", "group", "environment", "split")
SIZE = 224
MANY = 6
"""Environments up to which they are named."""
_SPLIT_FOLDERS = {name for name in SPLIT_NAMES if not name.isdecimal()}  # 0 and 1 are classes
_LAYOUT = "expected a folder for each class with its images in it, or a CSV with the columns path and label"


def is_table(path: str | PathLike[str]) -> bool:
    """Whether a path is a table by its name."""
    return str(path).lower().endswith(TABLE_SUFFIXES)


def read(
    path: str | PathLike[str], *, images: str | PathLike[str] | None = None, reading: Reading | None = None
) -> Listing:
    """Read images of one's own.

    Args:
        path: the folder or zip with a folder for each class, or the table.
        images: for a table, the folder or zip that its paths are relative to; its own folder where not given.
        reading: what the columns of the table are called, and the seed of the splits that are missing.

    Raises:
        DataError: nothing is there, or it is not laid out like this; all that is wrong is said at once.
    """
    place, how = Path(path).expanduser(), reading or Reading()
    if is_table(place):
        return _read_table(place, Path(images).expanduser() if images is not None else place.parent, how)
    if not place.exists():
        raise DataError(f"there is nothing at {place}; {_LAYOUT}")
    if place.is_file() and place.suffix.lower() != ".zip":
        raise DataError(f"{place} is neither a folder nor a zip or table; {_LAYOUT}")
    if how.renamed:
        raise DataError(f"{place} is no table and has no columns: leave --{next(iter(how.renamed))}-column out")
    return _read_folders(place, FolderSource(place) if place.is_dir() else ZipSource([place]), how)


def _read_table(place: Path, home: Path, reading: Reading) -> Listing:
    wanted = _wanted(reading)
    columns = read_columns(place).spelt(wanted.values())
    reading.check(columns)
    roles = {role: name for role, name in wanted.items() if name in columns}
    extra = [name for name in columns.values if name not in roles.values()]
    problems = list(_misspelt(place, extra, roles))
    if {"attribute", "group"} <= roles.keys():
        problems.append(f"{place} has both attribute and group; keep one of them")
    if not home.exists():
        raise DataError(f"there is no folder {home} for the images of {place}")
    readable = not problems  # whatever is wrong with its rows
    wrong: set[int] = set()
    for role in ("label", "attribute", "group", "environment"):
        cells = columns[roles[role]] if role in roles else []
        empty = [row for row, text in enumerate(cells) if not text]
        problems += [f"{columns.where(row)}: no {roles[role]}; fill it in, or leave the row out" for row in empty]
        wrong.update(empty)
    for row, text in enumerate(columns.values.get("split", [])):
        if text.lower() not in SPLIT_NAMES:
            problems.append(f"{columns.where(row)}: split is {text!r}, expected {', '.join(SPLITS)}")
            wrong.add(row)
    source: Source = FolderSource(home) if home.is_dir() else ZipSource([home])
    files, missing = look_for_files(source, columns[reading.path_column], columns.where)
    problems += _elsewhere(columns, reading.path_column, home, missing) if missing else []

    def rest() -> Listing:
        """The rows with which nothing is wrong."""
        usable = {name: row for name, row in files.items() if row not in wrong}
        return _of_columns(place, source, tuple(usable), columns.only(list(usable.values())), roles, reading, extra)

    if problems:
        raise RowsError(problems, rest if readable and set(files.values()) - wrong else None)
    return rest()


def _of_columns(
    place: Path,
    source: Source,
    files: tuple[str, ...],
    columns: Columns,
    roles: Mapping[str, str],
    reading: Reading,
    extra: Sequence[str],
) -> Listing:
    """The listing of rows with which nothing is wrong; `files` are theirs."""
    labels = numbered(columns[reading.label_column])
    attribute = _attribute(columns, roles, labels)
    split = None
    if "split" in columns:
        split = torch.tensor([SPLIT_NAMES[text.lower()] for text in columns["split"]])
    notes = list(_unused(extra, attribute))
    notes += [] if "split" in columns else _like_splits(columns, extra)
    environment = torch.zeros_like(labels[0])
    if "environment" in roles:
        environment, names = numbered(columns[roles["environment"]])
        told = f": {listed(names)}" if len(names) <= MANY else ""
        notes.append(f"{number_of(len(names), 'environment')} by the column {roles['environment']}{told}")
    listing = _listing(place, source, files, labels, attribute, split, reading.split_seed, notes, environment)
    return replace(listing, label_column=reading.label_column)


def _elsewhere(columns: Columns, name: str, home: Path, problems: list[str]) -> list[str]:
    """What is wrong with the paths: one line where none is in `home` and all are in the working directory.

    Where none is in either, the first of many says what to do.
    """
    here = FolderSource(Path())
    try:
        there = len(problems) == len(columns) and all(path and here.find(path) for path in columns[name])
    except DataError:  # a path leads out of it
        there = False
    if not there and len(problems) == len(columns) > 1:
        return [f"{problems[0]}, nor any other; say where they are with --data-path", *problems[1:]]
    if not there:
        return problems
    return [
        f"{columns.what}: none of its images is in {home}, but all are found from the working directory: say "
        f"--data-path ."
    ]


def _wanted(reading: Reading) -> dict[str, str]:
    """The columns by what they hold; a column that is named for the attribute takes the place of `group`.

    One that is called `environment` and is named for something else holds no environments.
    """
    wanted = {name: name for name in COLUMNS} | reading.renamed
    if "environment" not in reading.renamed and "environment" in reading.renamed.values():
        del wanted["environment"]
    if "attribute" in reading.renamed:
        del wanted["attribute" if wanted["attribute"] == "group" else "group"]
    return wanted


def _misspelt(place: Path, extra: Sequence[str], roles: Mapping[str, str]) -> Iterator[str]:
    """Columns that nobody asked for and whose names are nearly those of columns that are not there."""
    grouped = {"attribute", "group"} if roles.keys() & {"attribute", "group"} else set()
    free = [name for name in COLUMNS if name not in {*roles, *grouped, "environment"}]
    for name in extra:
        if near := difflib.get_close_matches(name.lower(), free, n=1, cutoff=0.75):
            option = f" Then say --{near[0]}-column {name}" if near[0] in ("path", "label", "attribute") else ""
            yield f"{place} has a column {name!r}; is {near[0]} meant?{option}"


def _attribute(columns: Columns, roles: Mapping[str, str], labels: tuple[Tensor, tuple[str, ...]]) -> Attribute:
    label, classes = labels
    if "attribute" in roles:
        return Attribute(*numbered(columns[roles["attribute"]]))
    if "group" in roles:
        return of_groups(columns["group"], columns[roles["label"]], label, classes)
    return Attribute(torch.zeros_like(label), ("all",))


def _unused(extra: Sequence[str], attribute: Attribute) -> Iterator[str]:
    """What to know of the columns."""
    if extra:
        guess = likeliest("attribute", "attribute", extra) if len(attribute.names) == 1 else None
        hint = f" (if {guess} is what must not matter, say --attribute-column {guess})" if guess else ""
        yield f"columns that are not used: {', '.join(name or 'one without a name' for name in extra)}{hint}"
    if attribute.note:
        yield attribute.note


def _like_splits(columns: Columns, extra: Sequence[str]) -> Iterator[str]:
    """Columns that tell splits by another name: what they hold out would be trained on."""
    words = {name for name in SPLIT_NAMES if name.isalpha()}
    for name in filter(None, extra):
        told = {text.lower() for text in columns[name]}
        if len(told) > 1 and told <= words:
            yield f"the column {name} holds splits ({listed(sorted(told))}): call it split to use it"


def _read_folders(place: Path, source: Source, reading: Reading) -> Listing:
    files = source.names()
    names, passed = [name for name in files if is_image(name)], passed_over(files)
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
        f"{place}: {name} is in no folder of a class; move it into one, or away"
        for name, parts in zip(names, paths, strict=True)
        if len(parts) < 2
    ]:
        raise ProblemsError(
            [f"{place} has no folders of classes; {_LAYOUT}"] if len(problems) == len(names) else problems
        )
    if not names:
        tables = sorted(str(inner) for inner in place.glob("*") if is_table(inner)) if place.is_dir() else []
        remedy = f"is {tables[0]} meant?" if tables else passed or _LAYOUT
        raise DataError(f"{place} has no image in it; {remedy}")
    label, classes = numbered([parts[0] for parts in paths])
    nothing = Attribute(torch.zeros_like(label), ("all",))
    notes = [passed] if passed else []
    if tables := [name for name in files if "/" not in name and is_table(name)]:
        it = "it is" if len(tables) == 1 else "one of them is"
        give = "give its path in place of the folder's"
        if not place.is_dir():
            give = f"unpack it and give its path, with --data-path {place}"
        notes.append(f"not read: {listed(tables)}; if {it} the table of these images, {give}")
    return _listing(place, source, tuple(names), (label, classes), nothing, split, reading.split_seed, notes)


def _listing(
    place: Path,
    source: Source,
    files: tuple[str, ...],
    label: tuple[Tensor, tuple[str, ...]],
    attribute: Attribute,
    split: Tensor | None,
    seed: int,
    notes: Sequence[str],
    environment: Tensor | None = None,
) -> Listing:
    if len(label[1]) < 2:
        raise DataError(f"{place}: every image has the label {label[1][0]!r}; a classifier needs two classes or more")
    if split is not None and not bool((split == 0).any()):
        raise DataError(f"{place} has no training image; give some rows the split train, or leave the column out")
    given = torch.zeros_like(label[0]) if split is None else split
    made = draw_missing(given, label[0] * len(attribute.names) + attribute.number, source.stamps(files), seed=seed)
    drawn = [f"{SPLITS[number]} ({share:.0%})" for number, share in SHARES.items() if not bool((given == number).any())]
    if drawn:
        notes = [*notes, f"drawn by --split-seed {seed} from the training images: {' and '.join(drawn)}"]
    listing = Listing(
        name=place.name.partition(".")[0]
        if is_table(place)
        else place.stem
        if place.is_file()
        else place.resolve().name,
        source=source,
        files=files,
        label=label[0],
        attribute=attribute.number,
        split=made,
        content=label[0],
        classes=label[1],
        attributes=attribute.names,
        size=SIZE,
        fit="crop",
        notes=tuple(notes),
        drawn=seed if drawn else None,
        nested=attribute.nested,
        environment=environment,
    )
    return listing if drawn else listing.by_split()  # a draw must not decide the order of the cache
