"""What can go wrong in guided training, counted on the device and read when somebody logs.

A *collapse* is the state in which all images of the pairs stand on one point. Alignment is then 0, uniformity at its
largest, and both gradients are exactly zero, since the gradient of a distance at 0 is taken as 0: the run never
recovers, predicts one class, and a disagreement of 0 looks perfect. This file needs torch alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "COLLAPSE_PATIENCE",
    "CORRECTIVE",
    "LAST_PATIENCE",
    "SKIP_PATIENCE",
    "TASK",
    "CollapseError",
    "NonFiniteError",
    "Watch",
    "count_collapse",
    "count_norm",
]

COLLAPSE_PATIENCE = 20
"""How many corrections in a row must find a collapse before `Watch.check` raises."""
LAST_PATIENCE = 3
"""How many, where they are the last of all: a run that ends like that is not to be waited for."""

GROWTH = 1e-3
"""By how much images have to be farther apart than ever, as a share, to count as moving apart."""

SKIP_PATIENCE = 50
"""How many updates of a kind in a row a GradScaler may skip before `Watch.check` raises: by then it has halved its
scale so often that no overflow explains them."""

CORRECTIVE, TASK = 4, 5
"""Where the gradients in a row that were not finite are counted, for each kind of update."""


class NonFiniteError(RuntimeError):
    """A loss or gradient was NaN or infinite."""


class CollapseError(RuntimeError):
    """Every image of the pairs has fallen onto one point: nothing can be learnt from there."""


class Watch:
    """Counters on the device; only `check` waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.counters = torch.tensor([0, -1, 0, 0, 0, 0], device=device)
        """Iterations; the first with a gradient that was not finite, -1 while there is none; such gradients; collapses
        in a row; such gradients in a row, of each kind of update."""
        self.widest = torch.zeros((), device=device)
        """The largest mean distance between images of different labels that a correction has found."""

    @property
    def non_finite(self) -> Tensor:
        """How many gradients were not finite."""
        return self.counters[2]

    def check(self, *, skips: bool, ended: bool = False) -> None:
        """Raise `NonFiniteError` or `CollapseError` if training has gone wrong; `skips` when a GradScaler skips.

        Where training has `ended`, fewer corrections are enough.
        """
        _, first, count, collapsed, corrective, task = self.counters.tolist()
        if count and not skips:
            raise NonFiniteError(
                f"NaN or infinite gradient at iteration {first}. Likely causes: a NaN in the images, a learning rate "
                f"that is too high, or fp16 without a GradScaler."
            )
        for kind, skipped in (("corrective", corrective), ("task", task)):
            if skipped >= SKIP_PATIENCE:
                raise NonFiniteError(
                    f"the last {skipped} {kind} updates had a NaN or infinite gradient and were skipped, however far "
                    f"the GradScaler went down (the first such gradient was at iteration {first}): nothing is being "
                    f"learnt. Likely causes: a NaN in the images, or values beyond the range of fp16; try bfloat16."
                )
        if collapsed >= (LAST_PATIENCE if ended else COLLAPSE_PATIENCE):
            raise CollapseError(
                f"the model has collapsed: for {collapsed} corrections all images of the pairs have stood on one "
                f"point, where every gradient is zero and the disagreement only looks perfect. Remedies: lower the "
                f"learning rate, or use pairs that differ in the shortcut alone."
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The counters."""
        return {"counters": self.counters.clone(), "widest": self.widest.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, in place; states of before the skipped updates in a row were counted have four."""
        given = state["counters"]
        self.counters.zero_()
        self.counters[: len(given)] = given
        self.widest.copy_(state.get("widest", torch.zeros(())))


def count_norm(counters: Tensor, norm: Tensor, kind: int) -> None:
    """Count a gradient that is not finite, also in a row of its `kind`, and remember the first iteration; in place."""
    bad = ~(norm < math.inf)
    iteration, first, count, _, *rows = counters.unbind()
    first.copy_(torch.where(bad & (first < 0), iteration, first))
    count.add_(bad)
    rows[kind - CORRECTIVE].add_(1).mul_(bad)


def count_collapse(counters: Tensor, widest: Tensor, separation: Tensor, near: Tensor, flat: Tensor) -> None:
    """Count the corrections in a row that find images of different labels on one point; in place.

    Args:
        counters: those of a `Watch`.
        widest: the largest `separation` so far.
        separation: mean distance between images of different labels.
        near: whether they are near to each other, as the margin goes. A small head begins so: where they have never
            been as far apart as now, they are on their way, and nothing has collapsed.
        flat: whether they are one point, as their own size goes.
    """
    grows = (widest > 0) & (separation > (1 + GROWTH) * widest)
    counters[3].add_(1).mul_(flat | (near & ~grows))
    wider = (separation > widest) & (separation < math.inf)
    widest.copy_(torch.where(wider, separation, widest))
