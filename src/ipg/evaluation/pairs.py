"""How often a model tells the two members of a pair apart: the measure of a shortcut that needs no group label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ipg.evaluation.groups import logits
from ipg.evaluation.statistics import counted
from ipg.pairs.pairset import PairSet
from ipg.rationale import double_precision, predicted_class

__all__ = ["disagreement", "pair_disagreement", "pair_metrics"]


def pair_disagreement(model: nn.Module, pairs: PairSet | None, *, autocast: torch.dtype | None = None) -> float | None:
    """Share of `pairs` whose members are classified differently; None where there are no pairs."""
    return disagreement(lambda images: logits(model, images, autocast=autocast), pairs)


def disagreement(logits_of: Callable[[Tensor], Tensor], pairs: PairSet | None) -> float | None:
    """As `pair_disagreement`, for any function that maps images to logits."""
    if pairs is None or len(pairs) == 0:
        return None
    first, second = (predicted_class(logits_of(members)) for members in (pairs.first, pairs.second))
    return float(double_precision(first != second).mean())


def pair_metrics(
    first: Tensor, second: Tensor, labels: Sequence[str], *, classes: Sequence[str] | None
) -> dict[str, Any]:
    """What the classes predicted for the members of pairs, (n,) each, say; every share with its interval.

    Args:
        first: the classes predicted for the first members.
        second: those for the second.
        labels: the label that the members of each pair share.
        classes: the names of the numbers; without them it is not known who is right.

    Returns:
        `disagreement`, `first_right` and `second_right` (None without `classes`), each a `counted` share, the same for
        each of the `labels`, and `predicted_classes`, how many classes the members get in all.
    """

    def of(rows: Tensor) -> dict[str, Any]:
        shares: dict[str, Any] = {"disagreement": counted(int((first != second)[rows].sum()), len(rows))}
        for name, predicted in (("first_right", first), ("second_right", second)):
            hits = None if truth is None else int((predicted == truth)[rows].sum())
            shares[name] = None if hits is None else counted(hits, len(rows))
        return shares

    truth = None if classes is None else torch.tensor([list(classes).index(label) for label in labels])
    names = [name for name in classes if name in labels] if classes is not None else sorted(set(labels))
    by_label = {name: of(torch.tensor([row for row, label in enumerate(labels) if label == name])) for name in names}
    given = len(set(torch.cat([first, second]).tolist()))
    return {**of(torch.arange(len(labels))), "predicted_classes": given, "labels": by_label}
