"""Pairs by the name of their builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from ipg.data.table import ImageTable
from ipg.pairs import matched, recolored
from ipg.pairs.pairset import PairSet

__all__ = ["BUILDERS", "build"]

BUILDERS: dict[str, Callable[..., PairSet]] = {
    "recolored": recolored.build,
    "random": matched.random,
    "closest": matched.closest,
}
"""`closest` also takes features; see `build`."""


def build(
    builder: str,
    table: ImageTable,
    count: int,
    *,
    split: str = "train",
    seed: int = 0,
    features: Tensor | NDArray[Any] | None = None,
) -> PairSet:
    """Build `count` pairs of `table` by the named builder.

    Args:
        builder: one of `BUILDERS`.
        table: the data set.
        count: how many pairs.
        split: whose images to use: `train` to guide by, `validation` to hold out.
        seed: of whatever is drawn.
        features: for `closest`, a row an image; the others take none.
    """
    if builder not in BUILDERS:
        raise ValueError(f"unknown pair builder {builder!r}; there are {', '.join(BUILDERS)}")
    if (builder == "closest") != (features is not None):
        raise ValueError(
            f"{builder!r} pairs need features: give an array of a row an image"
            if features is None
            else f"{builder!r} pairs take no features; leave them out, or build 'closest' ones"
        )
    given = (table,) if features is None else (table, features)
    return BUILDERS[builder](*given, count, split=split, seed=seed)
