"""CelebA: faces with 40 attributes, any of which may be the label and any other the shortcut.

Liu et al., "Deep Learning Face Attributes in the Wild", ICCV 2015. The usual task is Blond_Hair with Male for a
shortcut: 1,387 of 24,267 blond people in training are men. The official layout is read, as its authors give it or as
Kaggle does:

    img_align_celeba/         or img_align_celeba.zip, also in Img/
    list_attr_celeba.txt      or .csv, also in Anno/: 1 and -1, or 1 and 0
    list_eval_partition.txt   or .csv, also in Eval/: 0, 1, 2 for train, validation, test

or one table for both, `attributes.csv` or `attributes.csv.gz` with a column `partition`, beside `images*.zip`.
Photographs are cropped to the square in their middle, as group DRO does (178 pixels of 178 x 218).
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ipg.data.columns import Columns, parse_csv, read_columns
from ipg.data.errors import DataError, ProblemsError, gathered
from ipg.data.listing import Listing, RowsError, look_for_files, without_fault
from ipg.data.locations import locate
from ipg.data.sources import FolderSource, Source, ZipSource, open_source
from ipg.words import did_you_mean

__all__ = ["IMAGES", "parse_list", "read"]

IMAGES = 202_599
"""How many there are in all."""
DEFAULT = ("Blond_Hair", "Male")
SIZES = {"celeba": 224, "celeba_subset": 128}
_PARTITION = {"0": 0, "1": 1, "2": 2}
_VALUES = {"1": 1, "-1": 0, "0": 0}
_REMEDY = (
    "download img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt from its authors' page into one "
    "folder (docs/data.md says how)"
)


def read(name: str = "celeba", path: str | PathLike[str] | None = None, *, task: tuple[str, str] = DEFAULT) -> Listing:
    """Read CelebA.

    Args:
        name: `celeba`, all of it, or `celeba_subset`, any part of it, so that figures say which they are from.
        path: its folder. Default: the folder of that name in `IPG_DATA`.
        task: the attribute that is the label, and the one that is the shortcut.

    Raises:
        DataError: something is missing, damaged, or not what it is called; all that is wrong is said at once.
    """
    home = locate(name, path, _REMEDY)
    if not home.is_dir():
        raise DataError(f"{home} is a file; expected the folder that holds CelebA's images and lists")
    problems: list[str] = []
    lists: tuple[Columns, Columns] | None = None
    source: Source | None = None
    with gathered(problems):
        lists = _lists(home)
    with gathered(problems):
        source = _images(home)
    if problems:
        problems[-1] += f"; {_REMEDY}"
    if lists is None:
        raise ProblemsError(problems)
    table, partition = lists
    if len(table) != IMAGES and name == "celeba":
        problems.append(f"{table.what} lists {len(table):,} images, not CelebA's {IMAGES:,}; load it as celeba_subset")
    unknown = list(_about_task(task, table))
    problems += unknown
    if unknown or source is None:
        raise ProblemsError(problems)
    label, attribute = (torch.tensor(table.numbers(column, _VALUES, problems)) for column in task)
    split = _splits(table, partition, problems)
    there, missing = look_for_files(source, table["image_id"], table.where)
    problems += missing
    usable = without_fault(there, label, attribute, split)

    def rest() -> Listing:
        """The images with which nothing is wrong."""
        rows = list(usable.values())
        return Listing(
            name=name if task == DEFAULT else f"{name}:{'/'.join(task)}",
            source=source,
            files=tuple(usable),
            label=label[rows],
            attribute=attribute[rows],
            split=split[rows],
            content=label[rows],
            classes=_values(task[0]),
            attributes=_values(task[1]),
            size=SIZES[name],
            fit="crop",
        ).by_split()

    if problems:
        raise RowsError(problems, rest if usable else None)
    return rest()


def _about_task(task: tuple[str, str], table: Columns) -> Iterator[str]:
    """What is wrong with the attributes that are asked for."""
    known = [column for column in table.values if column not in ("image_id", "partition", "identity")]
    for wanted in task:
        if wanted not in known:
            hint = did_you_mean(wanted, known)
            yield f"CelebA has no attribute {wanted!r}; {f'{hint} T' if hint else 't'}here are {', '.join(known)}"
    if task[0] == task[1]:
        yield f"the label and the shortcut are both {task[0]}; give two attributes, e.g. celeba:Smiling/Male"


def _read_list(path: Path) -> Columns:
    """One of CelebA's lists."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return parse_list(data, str(path))


def parse_list(data: bytes, what: str) -> Columns:
    """A list of CelebA: the authors' text, in which a number may stand above the names, or a CSV."""
    if not what.endswith(".txt"):
        return parse_csv(data, what)
    rows = [line.split() for line in data.decode("utf-8", errors="replace").splitlines()]
    start = 1 if rows and len(rows[0]) == 1 else 0  # how many images follow
    named = start < len(rows) and not rows[start][-1].lstrip("-").isdigit()
    header = ["image_id", *rows[start]] if named else ["image_id", "partition"]
    body = [(number, row) for number, row in enumerate(rows[start + named :], start + named + 1) if row]
    if not body:
        raise DataError(f"{what} lists no image; get the file again")
    return Columns.of_rows(what, header, body, wrong="{found} words, expected {expected}")


def _lists(home: Path) -> tuple[Columns, Columns]:
    """The table of attributes, and the one of partitions, which may be the same."""
    for name in ("attributes.csv.gz", "attributes.csv"):
        if (home / name).is_file():
            table = read_columns(home / name)
            table.require("image_id", "partition")
            return table, table
    problems: list[str] = []
    found: list[Columns] = []
    for stem, folder, needed in (
        ("list_attr_celeba", "Anno", ("image_id",)),
        ("list_eval_partition", "Eval", ("image_id", "partition")),
    ):
        with gathered(problems):
            columns = _read_list(_find(home, stem, folder))
            columns.require(*needed)
            found.append(columns)
    if problems:
        raise ProblemsError(problems)
    table, partition = found
    return table, partition


def _find(home: Path, stem: str, folder: str) -> Path:
    places = [home / inner / f"{stem}{suffix}" for inner in ("", folder) for suffix in (".txt", ".csv")]
    for place in places:
        if place.is_file():
            return place
    raise DataError(f"{home} has no {stem}.txt (nor .csv, nor either in {folder}/)")


def _splits(table: Columns, partition: Columns, problems: list[str]) -> Tensor:
    numbers = partition.numbers("partition", _PARTITION, problems)
    if table is partition:
        return torch.tensor(numbers)
    known = dict(zip(partition["image_id"], numbers, strict=True))
    problems += [
        f"{table.where(row)}: {image} is not in {partition.what}"
        for row, image in enumerate(table["image_id"])
        if image not in known
    ]
    return torch.tensor([known.get(image, -1) for image in table["image_id"]])


def _images(home: Path) -> Source:
    for folder in (home, home / "Img"):
        inner = folder / "img_align_celeba"
        for place in (inner / "img_align_celeba", inner):  # Kaggle has the one in the other
            if place.is_dir():
                return FolderSource(place)
        if (archive := folder / "img_align_celeba.zip").is_file():
            return _unwrapped(archive)
    if list(home.glob("images*.zip")):
        return open_source(home)
    raise DataError(f"{home} has no img_align_celeba folder or zip")


def _unwrapped(archive: Path) -> ZipSource:
    """The archive relative to the folder its images lie in."""
    first = next((name for name in ZipSource([archive]).names() if name.endswith((".jpg", ".png", ".webp"))), "")
    return ZipSource([archive], prefix=first.rpartition("/")[0] + "/" if "/" in first else "")


def _values(attribute: str) -> tuple[str, str]:
    words = attribute.replace("_", " ").lower()
    return f"not {words}", words
