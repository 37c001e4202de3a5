"""Pairs of several folders in one: those of the first folder come first, and an image with a pair is given no second.

So a few real pairs are topped up with pairs that were made: the labels get equally many, as far as there are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ipg.data.errors import DataError, ProblemsError
from ipg.data.table import ImageTable
from ipg.pairs.balance import deal
from ipg.pairs.checks import UNREADABLE, class_number, problems_in
from ipg.pairs.plan import Plan, file_name
from ipg.pairs.record import SHARED, placed, read_record
from ipg.pairs.references import References
from ipg.pairs.rows import DATA, Manifest, Pair

__all__ = ["plan", "shared_settings"]

SAME = tuple(name for name in SHARED if name != "seed")
"""What folders have to share, where they say."""


def plan(manifests: Sequence[Manifest], table: ImageTable, *, count: int | None = None, split: str = "train") -> Plan:
    """The pairs of `split` in all manifests, less the rejected ones and second ones of an image.

    Args:
        manifests: the folders' own, in the order in which to take from them.
        table: the data set that all belong to.
        count: how many to take, dealt equally from the labels; all where not given.
        split: of the pairs.

    Raises:
        ProblemsError: a pair is not what it says, or a file is missing; all of it is said at once.
        DataError: there is no such pair, or the manifests have fewer than `count`.
    """
    references = [References(manifest.folder, table) for manifest in manifests]
    found = _unlike(manifests, split)
    if not found:
        raise DataError(f"no pair of {split} is there to merge; `ipg pairs show` shows what the folders have")
    if problems := [problem for home, row in found for problem in _problems(manifests[home], row, references[home])]:
        raise ProblemsError(problems)
    labels = [class_number(manifests[home].pairs[row].label, table.classes) for home, row in found]
    queues = {
        table.classes[label]: torch.tensor([place for place, own in enumerate(labels) if own == label])
        for label in sorted(set(labels))
    }
    try:
        chosen = [found[place] for place in deal(queues, len(found) if count is None else count).tolist()]
    except ValueError as error:
        raise DataError(f"{error}, or build more pairs to merge") from None

    def make(number: int) -> Mapping[str, Tensor]:
        home, row = chosen[number]
        pair, source = manifests[home].pairs[row], references[home]
        try:
            return {
                name: source.mask(getattr(pair, what)) if what == "mask" else source.image(getattr(pair, what))
                for what, name in _names(pair, number).items()
            }
        except DataError as error:
            raise DataError(f"{manifests[home].where(row)}: {error}") from None

    pairs = [manifests[home].pairs[row] for home, row in chosen]
    return Plan(table, tuple(replace(pair, **_names(pair, number)) for number, pair in enumerate(pairs)), make)


def _unlike(manifests: Sequence[Manifest], split: str) -> list[tuple[int, int]]:
    """The accepted pairs by manifest and row, the first of each image of the data set alone.

    A pair is of the image that it is made of, not of a donor, and of both its members where these are images of the
    data set.
    """
    seen: set[str] = set()
    found = []
    for home, manifest in enumerate(manifests):
        for row, pair in enumerate(manifest.pairs):
            members = {name.removeprefix(DATA) for name in (pair.first, pair.second) if name.startswith(DATA)}
            own = members.union(pair.made_of[:1])
            if pair.split == split and pair.status != "rejected" and seen.isdisjoint(own):
                found.append((home, row))
                seen |= own
    return found


def _problems(manifest: Manifest, row: int, references: References) -> list[str]:
    """What is wrong with a pair, before anything is written."""
    missing = [name for name in manifest.pairs[row].files if references.source.find(name) is None]
    gone = [f"{manifest.where(row)}: {UNREADABLE}: {name}: there is no such file" for name in missing]
    return [*problems_in(manifest, [row], references), *gone]


def _names(pair: Pair, number: int) -> dict[str, str]:
    """What the files of a pair are called in the new folder, by what they are."""
    files = {what: getattr(pair, what) for what in ("first", "second", "mask")}
    return {
        what: file_name(pair.split, number, what) for what, name in files.items() if name and not name.startswith(DATA)
    }


def shared_settings(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """What the folders say of the data that their pairs are of; DataError where they differ."""
    known: dict[str, Any] = {}
    for manifest in manifests:
        for one in read_record(manifest.folder).values():
            settings = {name: one["settings"][name] for name in (*SAME, "data_path", "seed") if name in one["settings"]}
            for name in SAME:
                before, now = known.get(name), settings.get(name)
                if before is not None and now is not None and _placed(name, before) != _placed(name, now):
                    raise DataError(
                        f"{manifests[0].folder} and {manifest.folder} hold pairs of other images: {name} is {before} "
                        f"and {now}"
                    )
            known = settings | known
    return known


def _placed(name: str, value: Any) -> Any:
    return placed(value) if name == "data" and isinstance(value, str) else value
