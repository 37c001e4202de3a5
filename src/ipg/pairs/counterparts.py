"""Pairs that the user has: a table that names for each image its counterpart, an image in a folder or zip of its own.

Columns: `image`, an image of the data set; `counterpart`, a file, or `data:NAME` for another image of the data set;
the label, in a column `label` or in the one that is left over (`y`, `place`), by name or number. Without a column for
it the label is the data set's. Rows whose image is of another split than the one asked for are left for that one, which
the plan's notes say; those of test images are used for no pair.

A counterpart that is called like an image of the data set is taken to be made of it, so that an audit knows its split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ipg.data.columns import Columns, read_columns
from ipg.data.decode import decode
from ipg.data.errors import DataError, ProblemsError
from ipg.data.listing import Listing
from ipg.data.parallel import in_order
from ipg.data.sources import FolderSource, Source, ZipSource
from ipg.data.table import ImageTable
from ipg.pairs.balance import deal
from ipg.pairs.checks import class_number, problems_of
from ipg.pairs.plan import Plan, file_name
from ipg.pairs.references import References
from ipg.pairs.rows import DATA, Pair
from ipg.words import are, number_of

__all__ = ["plan"]

PAIRED = ("train", "validation")
"""The splits that pairs are made of."""


def plan(
    table: ImageTable,
    listing: Listing,
    path: str | PathLike[str],
    *,
    images: str | PathLike[str] | None = None,
    count: int | None = None,
    split: str = "train",
    seed: int = 0,
    there: Collection[str] = (),
) -> Plan:
    """Read the user's pairs.

    Args:
        table: the data set, at the size of the pairs.
        listing: its files; counterparts become square as they do.
        path: the table of pairs.
        images: the folder or zip of the counterparts. Default: `counterparts` or `counterparts.zip` beside the table,
            or the folder that it is in.
        count: how many, drawn equally from the labels; all of them where not given.
        split: of which images.
        seed: of the draw.
        there: splits whose pairs the folder has already, of which there is nothing to say.

    Raises:
        ProblemsError: rows are wrong or counterparts cannot be read; all of it is said at once.
    """
    columns = read_columns(Path(path).expanduser()).spelt(("image", "counterpart", "label"))
    columns.require("image", "counterpart")
    source = _open(Path(path).expanduser(), images)
    references = References(source.place, table)
    problems: list[str] = []
    remedy = "; say with --images where counterparts are" if images is None else ""
    found = [_row(columns, row, table, references, source, problems, remedy) for row in range(len(columns))]
    problems += [
        f"{columns.where(row)}: {problem}"
        for row, pair in enumerate(found)
        if pair is not None
        for problem in problems_of(pair, references)
    ]
    pairs = [pair for pair in found if pair is not None and pair.split == split]
    if not problems:
        problems = _unreadable(pairs, source, table, listing)
    if problems:
        raise ProblemsError(problems)
    notes = tuple(_left_out([pair.split for pair in found if pair is not None], {split, *there}))
    if not pairs:
        raise DataError("; ".join([f"{columns.what} has no pair whose image is of {split}", *notes]))
    chosen = pairs if count is None else [pairs[row] for row in _draw(pairs, table, count, seed)]
    names = [pair.second for pair in chosen]

    def make(number: int) -> dict[str, Tensor]:
        if names[number].startswith(DATA):
            return {}
        return {file_name(split, number, "second"): _decode(source, names[number], table, listing)}

    return Plan(table, tuple(_placed(split, number, pair) for number, pair in enumerate(chosen)), make, notes=notes)


def _left_out(splits: Sequence[str], wanted: Collection[str]) -> Iterator[str]:
    """What becomes of the rows whose images are of other splits than those `wanted`."""
    for split, count in Counter(splits).items():
        rows = f"{number_of(count, 'row')} {are(count)} of {split} images"
        if split in PAIRED and split not in wanted:
            yield f"{rows}: add {'it' if count == 1 else 'them'} with --split {split}"
        elif split not in wanted:
            yield f"{rows}: no pairs are made of these, which measure what a network has learnt"


def _open(path: Path, images: str | PathLike[str] | None) -> Source:
    if images is not None:
        place = Path(images).expanduser()
        if not place.exists():
            raise DataError(f"there are no counterparts at {place}; give their folder or zip with --images")
    else:
        beside = (path.parent / "counterparts", path.parent / "counterparts.zip")
        place = next((place for place in beside if place.exists()), path.parent)
    return FolderSource(place) if place.is_dir() else ZipSource([place])


def _row(
    columns: Columns,
    row: int,
    table: ImageTable,
    references: References,
    source: Source,
    problems: list[str],
    remedy: str,
) -> Pair | None:
    """A row as a pair, its second member still the name of a file in `source`; None where its images are not there.

    `remedy` is for counterparts that are not there.
    """
    where, image, counterpart = columns.where(row), columns["image"][row], columns["counterpart"][row]
    inside = counterpart.startswith(DATA)
    try:
        number = references.row(image.removeprefix(DATA))
        found = counterpart if inside else source.find(counterpart) if counterpart else None
    except DataError as error:
        problems.append(f"{where}: {error}")
        return None
    if found is None:
        problems.append(
            f"{where}: there is no counterpart {counterpart!r} in {source.place}{remedy if counterpart else ''}"
        )
        return None
    split = table.splits[int(table.split[number])]
    name = _label_column(columns)
    made_of = [image.removeprefix(DATA), *([counterpart] if references.has(counterpart) else [])]
    return Pair(
        first=DATA + image.removeprefix(DATA),
        second=found,
        label=_named(columns[name][row], table) if name else table.classes[int(table.label[number])],
        split=split,
        builder="counterparts",
        made_of=() if inside else tuple(dict.fromkeys(made_of)),
    )


def _label_column(columns: Columns) -> str | None:
    """The column that holds the label."""
    others = [name for name in columns.values if name not in ("image", "counterpart")]
    if "label" in others or len(others) < 2:
        return "label" if "label" in others else next(iter(others), None)
    raise DataError(f"{columns.what}: which of {', '.join(others)} is the label? Call it label")


def _named(label: str, table: ImageTable) -> str:
    """The class by its name; a label that is none stays as it is, and is reported with the others."""
    try:
        return table.classes[class_number(label, table.classes)]
    except DataError:
        return label


def _unreadable(pairs: list[Pair], source: Source, table: ImageTable, listing: Listing) -> list[str]:
    def problem(pair: Pair) -> str:
        try:
            if not pair.second.startswith(DATA):
                _decode(source, pair.second, table, listing)
        except DataError as error:
            return f"{source.place}: {pair.second}: {error}"
        return ""

    return [text for text in in_order(problem, pairs) if text]


def _decode(source: Source, name: str, table: ImageTable, listing: Listing) -> Tensor:
    return torch.from_numpy(decode(source.read(name), size=table.images.shape[-1], fit=listing.fit))


def _draw(pairs: list[Pair], table: ImageTable, count: int, seed: int) -> list[int]:
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    label = torch.tensor([class_number(pair.label, table.classes) for pair in pairs])[order]
    queues = {name: order[label == number] for number, name in enumerate(table.classes) if (label == number).any()}
    return [int(row) for row in deal(queues, count)]


def _placed(split: str, number: int, pair: Pair) -> Pair:
    """The pair with its second member where it will be beside the manifest."""
    return pair if pair.second.startswith(DATA) else replace(pair, second=file_name(split, number, "second"))
