"""What a search maximises, and the images it may look at: all but the test split, which is taken out of the data.

    search         accuracy on the split `search`, held out of the test environment for this (ColoredMNIST)
    worst_group    accuracy of the worst group of the validation images; needs group labels
    pairs          balanced validation accuracy times the share of held-out pairs that agree; needs no group label

Each is measured at the epoch that the run itself would keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

import torch

from ipg.config import RunConfig
from ipg.data.load import load
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.evaluation.selection import SELECTIONS

__all__ = ["Objective", "choose_objective", "group_mean", "readable", "split_of", "value_of", "without_test"]

Objective = Literal["search", "worst_group", "pairs"]

TEST = "test"


def without_test(table: ImageTable) -> ImageTable:
    """`table` without its test images, and without a split of that name: what is not there cannot be evaluated."""
    kept = [number for number, name in enumerate(table.splits) if name != TEST]
    rows = torch.isin(table.split, torch.tensor(kept))
    place = torch.zeros(len(table.splits), dtype=torch.int64)
    place[kept] = torch.arange(len(kept))
    part = table.take(rows)
    return replace(part, split=place[part.split], splits=tuple(table.splits[number] for number in kept))


def readable(config: RunConfig) -> ImageTable:
    """The data of `config` without its test images; loaded once for trials in one process that share it."""
    return _readable(config.data, config.data_path, config.size, config.seed, Reading.of(config))


@lru_cache(maxsize=1)
def _readable(data: str, path: str | None, size: int | None, seed: int, reading: Reading) -> ImageTable:
    return without_test(load(data, path=path, size=size, seed=seed, reading=reading))


def choose_objective(table: ImageTable, wanted: str = "auto", *, held_out: bool) -> Objective:
    """The objective that `table` allows for; `auto` is the first of the list above that it does.

    Args:
        table: data without its test images.
        wanted: an objective, or `auto`.
        held_out: whether there are pairs of validation images.
    """
    if wanted not in ("auto", *get_args(Objective)):
        raise ValueError(f"there is no objective {wanted!r}; there are auto, {', '.join(get_args(Objective))}")
    reasons = {objective: _obstacle(table, objective, held_out=held_out) for objective in get_args(Objective)}
    for objective, reason in reasons.items():
        if reason is None and wanted in ("auto", objective):
            return objective  # type: ignore[no-any-return]
    if wanted != "auto":
        raise ValueError(f"objective {wanted!r} cannot be measured on {table.name}: {reasons[wanted]}")
    raise ValueError(
        f"{table.name} has nothing to judge trials by: {'; '.join(f'{name}: {why}' for name, why in reasons.items())}"
    )


def split_of(objective: Objective) -> str:
    """The split whose images an objective looks at."""
    return "search" if objective == "search" else "validation"


def value_of(objective: Objective, row: Mapping[str, Any]) -> float | None:
    """The objective of an epoch's row; None where it was not measured."""
    if objective == "search":
        average: float | None = row["search"]["average"]
        return average
    return SELECTIONS[objective](row)[0]


def group_mean(objective: Objective, row: Mapping[str, Any]) -> float | None:
    """What decides between trials of one value: the mean of the groups' accuracies."""
    mean: float | None = row[split_of(objective)]["group_mean"]
    return mean


def _obstacle(table: ImageTable, objective: str, *, held_out: bool) -> str | None:
    """Why an objective cannot be measured; None where it can."""
    if objective == "search":
        return None if _count(table, "search") else "it has no split search"
    if not _count(table, "validation"):
        return "it has no validation images"
    if objective == "pairs":
        return None if held_out else "there are no held-out pairs (`ipg pairs build … --split validation` makes some)"
    present = table.part("validation").group.unique()  # type: ignore[no-untyped-call]
    if len(table.attributes) < 2 or len(present) < len(table.group_names):
        return "its validation images are not of all groups"
    return None


def _count(table: ImageTable, split: str) -> int:
    return len(table.indices(split)) if split in table.splits else 0
