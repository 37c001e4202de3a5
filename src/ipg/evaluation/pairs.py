"""How often a model tells the two members of a pair apart: the measure of a shortcut that needs no group label."""

from __future__ import annotations

import torch
from torch import nn

from ipg.evaluation.groups import predict
from ipg.pairs.pairset import PairSet

__all__ = ["pair_disagreement"]


def pair_disagreement(model: nn.Module, pairs: PairSet | None, *, autocast: torch.dtype | None = None) -> float | None:
    """Share of `pairs` whose members are classified differently; None where there are no pairs."""
    if pairs is None or len(pairs) == 0:
        return None
    first = predict(model, pairs.first, autocast=autocast)
    second = predict(model, pairs.second, autocast=autocast)
    return float((first != second).double().mean())
