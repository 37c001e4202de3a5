"""What makes a pair unusable before anybody looks at its pixels: its label, and where its images come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ipg.data.errors import DataError
from ipg.data.table import ImageTable
from ipg.pairs.references import References
from ipg.pairs.rows import DATA, Manifest, Pair
from ipg.words import listed

__all__ = [
    "ANOTHER_SPLIT",
    "LABELS_DIFFER",
    "UNKNOWN_LABEL",
    "UNREADABLE",
    "class_number",
    "problems_in",
    "problems_of",
]

UNREADABLE = "image missing or unreadable"
UNKNOWN_LABEL = "unknown label"
LABELS_DIFFER = "labels differ"
ANOTHER_SPLIT = "another split"
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")


def class_number(label: str, classes: Sequence[str]) -> int:
    """The number of a class given by name or number; DataError where there is none.

    Where any class is named by a number, classes are given by name alone: a number could be meant either way.
    """
    if label in classes:
        return classes.index(label)
    if any(_NUMBER.fullmatch(name) for name in classes):
        raise DataError(
            f"the label is {label!r}, expected {listed(classes, ' or ')}: the classes are named by numbers, so labels "
            f"are read as names"
        )
    if label.isdecimal() and int(label) < len(classes):
        return int(label)
    raise DataError(f"the label is {label!r}, expected {', '.join(classes)}, or 0 to {len(classes) - 1}")


def _drawn(table: ImageTable) -> str:
    """Where the split is drawn: by what, and how it is fixed."""
    if table.drawn is None:
        return ""
    return f" (the split is drawn by split_seed {table.drawn}: a column `split` in a table fixes it)"


def problems_in(manifest: Manifest, rows: Iterable[int], references: References) -> list[str]:
    """What is wrong with these pairs of a manifest, each with its line; see `problems_of`."""
    return [
        f"{manifest.where(row)}: {problem}" for row in rows for problem in problems_of(manifest.pairs[row], references)
    ]


def problems_of(pair: Pair, references: References) -> list[str]:
    """What is wrong with a pair as it is written down, each as `kind: what was found`; its images are not read."""
    table = references.table
    if table is None:
        stated = {text for text in (pair.label_first, pair.label_second) if text}
        return [f"{LABELS_DIFFER}: {', '.join(sorted(stated))}"] if len(stated) > 1 else []
    try:
        label = class_number(pair.label, table.classes)
    except DataError as error:
        return [f"{UNKNOWN_LABEL}: {error}"]
    found: list[str] = []
    labels: dict[str, int] = {}
    for member, text in (("first", pair.label_first), ("second", pair.label_second)):
        try:
            if text:
                labels[f"the {member} member"] = class_number(text, table.classes)
        except DataError as error:
            found.append(f"{UNKNOWN_LABEL}: {error}")
    members = [name.removeprefix(DATA) for name in (pair.first, pair.second) if name.startswith(DATA)]
    for name in pair.originals:
        try:
            row = references.row(name)
        except DataError as error:
            if name not in members:  # reading them will say so
                found.append(f"{UNREADABLE}: {error}")
            continue
        split = table.splits[int(table.split[row])]
        if split != pair.split:
            found.append(f"{ANOTHER_SPLIT}: {name} is of {split}, the pair of {pair.split}{_drawn(table)}")
        if name in members or name == pair.made_of[0]:
            labels[name] = int(table.label[row])
    found += [
        f"{LABELS_DIFFER}: {name} is {table.classes[other]}, the pair {table.classes[label]}"
        for name, other in labels.items()
        if other != label
    ]
    return found
