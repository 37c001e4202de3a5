"""Which images to show with where the models look: pairs that flipped, else held-out pairs, else test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ipg.notebook import Run
from ipg.report.attribution import look
from ipg.report.page import Flip, Look
from ipg.report.pair_answers import in_turns, measures_on

__all__ = ["find_looks"]

SHOWN = 6


def find_looks(runs: Mapping[str, Run], flips: Sequence[Flip]) -> list[Look]:
    """The same few images for all `runs`, by name, with a map of each for every run.

    Members of a pair stand side by side. Images that the runs do not share are not shown.
    """
    chosen = [(flip.label, [flip.first, flip.second]) for flip in flips[:SHOWN]] or _others(list(runs.values()))
    if not chosen:
        return []
    images = torch.stack([image for _, members in chosen for image in members])
    maps = {name: look(run.model, images) for name, run in runs.items()}
    looks, start = [], 0
    for label, members in chosen:
        end = start + len(members)
        looks.append(Look(label, members, {name: list(found[start:end]) for name, found in maps.items()}))
        start = end
    return looks


def _others(runs: Sequence[Run]) -> list[tuple[str, list[Tensor]]]:
    """Held-out pairs where all runs have the same, else test images, one of each group after the other."""
    table = runs[0].materials.table
    pairs = runs[0].materials.held_out
    if pairs is not None and len(pairs) and all(measures_on(run, pairs) for run in runs[1:]):
        rows = in_turns(pairs.label.cpu(), torch.arange(len(pairs)))[:SHOWN]
        return [
            (table.classes[int(pairs.label[row])], [pairs.first[row].cpu(), pairs.second[row].cpu()]) for row in rows
        ]
    if "test" not in table.splits:
        return []
    group, rows_of_test = table.group.cpu(), table.indices("test").cpu()
    rows = in_turns(group[rows_of_test], torch.arange(len(rows_of_test)))[:SHOWN]
    kept = rows_of_test[rows].tolist()
    return [(_named(table.group_names[int(group[row])], table.attributes), [table.images[row].cpu()]) for row in kept]


def _named(group: str, attributes: Sequence[str]) -> str:
    """The group, or the class alone where there is one attribute for all."""
    return group if len(attributes) > 1 else group.removesuffix(f", {attributes[0]}")
