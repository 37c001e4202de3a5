"""Labels and attributes as numbers, and what a column of groups says of the attribute.

A group is a label and an attribute together. People number them, label x (number of attributes) + attribute, as group
DRO does; or name them after both (`circle-noise`); or mean the attribute itself, which then comes under several labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Attribute", "numbered", "of_groups"]

MOST_VALUES = 10_000
"""Values of an attribute that groups may number; beyond, their numbers are names."""
MOST_DIGITS = 1000
"""Digits of what is taken for a number; Python refuses to read much longer ones."""
BETWEEN = " \t-_,;:/|+&."
"""What stands between the names of a label and of an attribute."""
SHOWN = 8
"""How many groups a note names."""


@dataclass(frozen=True)
class Attribute:
    """The attribute of every row."""

    number: Tensor  # (N,)
    names: tuple[str, ...]
    note: str = ""
    """How it was made of groups, where that is not plain."""
    nested: bool = False
    """Whether a value stands for something else under every label, so that labels cannot be compared by it."""


def numbered(texts: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers for texts and the texts by number, in the order of their values where all are whole numbers."""
    names = sorted(set(texts), key=(lambda text: (int(text), text)) if _are_whole(texts) else (lambda text: (0, text)))
    numbers = {name: number for number, name in enumerate(names)}
    return torch.tensor([numbers[text] for text in texts]), tuple(names)


def of_groups(groups: Sequence[str], labels: Sequence[str], label: Tensor, classes: Sequence[str]) -> Attribute:
    """The attribute that a column of groups stands for.

    Args:
        groups: the column.
        labels: the labels of the same rows.
        label: their numbers.
        classes: their names, by number.
    """
    if _are_whole(groups):
        numbers = [int(text) for text in groups]
        values = -(-(max(numbers) + 1) // len(classes))
        if min(numbers) >= 0 and values <= MOST_VALUES and [n // values for n in numbers] == label.tolist():
            return Attribute(torch.tensor([n % values for n in numbers]), tuple(str(value) for value in range(values)))
    under: dict[str, dict[str, None]] = {name: {} for name in classes}
    for group, text in zip(groups, labels, strict=True):
        under[text][group] = None
    several = sum(map(len, under.values())) > len(set(groups))  # some group is under two labels
    if several or len(set(groups)) <= len(classes):
        return Attribute(*numbered(groups))
    stripped = {name: {group: _without(group, name) for group in own} for name, own in under.items()}
    values_of = [sorted(rest.values()) for rest in stripped.values()]
    if all(values_of[0]) and all(values == values_of[0] for values in values_of) and _differ(values_of[0]):
        texts = [stripped[text][group] for group, text in zip(groups, labels, strict=True)]
        note = f"the attribute is the group without its label, as {groups[0]!r} is {labels[0]!r} and {texts[0]!r}"
        return Attribute(*numbered(texts), note=note)
    return _nested(groups, labels, under)


def _nested(groups: Sequence[str], labels: Sequence[str], under: dict[str, dict[str, None]]) -> Attribute:
    """Groups as they are: the first, second, … of their label."""
    place = {
        (name, group): number for name, own in under.items() for number, group in enumerate(numbered(list(own))[1])
    }
    names = tuple(f"group {number + 1}" for number in range(max(map(len, under.values()))))
    known = [f"{group} is {names[number]} of {name}" for (name, group), number in place.items()]
    more = f", and {len(known) - SHOWN:,} more" if len(known) > SHOWN else ""
    note = f"every group is of one label alone, so groups are taken as they are: {', '.join(known[:SHOWN])}{more}"
    chosen = torch.tensor([place[text, group] for group, text in zip(groups, labels, strict=True)])
    return Attribute(chosen, names, note=note, nested=True)


def _without(group: str, label: str) -> str:
    """The name of a group without that of its label, before or after it; nothing where it is not in there."""
    lower, name = group.casefold(), label.casefold()
    for rest, edge in ((group[len(label) :], 0), (group[: -len(label)], -1)):
        there = lower.startswith(name) if edge == 0 else lower.endswith(name)
        if there and rest and rest[edge] in BETWEEN:
            return rest.strip(BETWEEN)
    return ""


def _differ(values: Sequence[str]) -> bool:
    return len(set(values)) == len(values)


def _are_whole(texts: Sequence[str]) -> bool:
    return all(text.removeprefix("-").isdecimal() and len(text) < MOST_DIGITS for text in texts)
