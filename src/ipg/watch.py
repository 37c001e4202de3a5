"""What can go wrong in guided training, counted on the device and read when somebody logs.

A *collapse* is the state in which all images of the pairs stand on one point. Alignment is then 0, uniformity at its
largest, and both gradients are exactly zero, since the gradient of a distance at 0 is taken as 0: the run never
recovers, predicts one class, and a disagreement of 0 looks perfect. This file imports torch alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["COLLAPSE_PATIENCE", "COLLAPSE_TOLERANCE", "CollapseError", "NonFiniteError", "Watch"]

COLLAPSE_TOLERANCE = 1e-3
"""How near alignment must come to 0, and uniformity to its maximum, in units of the margin, to count as collapsed."""
COLLAPSE_PATIENCE = 20
"""How many corrections in a row must find a collapse before `Watch.check` raises."""


class NonFiniteError(RuntimeError):
    """A loss or gradient was NaN or infinite."""


class CollapseError(RuntimeError):
    """Every image of the pairs has fallen onto one point: nothing can be learnt from there."""


class Watch:
    """Counters on the device; only `check` waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.iteration = torch.zeros((), dtype=torch.long, device=device)
        self.first_non_finite = torch.full_like(self.iteration, -1)
        self.non_finite = torch.zeros_like(self.iteration)
        self.collapsed = torch.zeros_like(self.iteration)

    def norm(self, norm: Tensor) -> None:
        """Count a gradient that is not finite, and remember the first iteration that had one."""
        bad = ~torch.isfinite(norm)
        is_first = bad & (self.first_non_finite < 0)
        self.first_non_finite.copy_(torch.where(is_first, self.iteration, self.first_non_finite))
        self.non_finite += bad

    def pairs(self, align: Tensor, uniform: Tensor, different: Tensor, embedded: Tensor, margin: Tensor) -> None:
        """Count the corrections in a row at which images of different labels stand on one point.

        Args:
            align: `L_A`.
            uniform: `L_U`.
            different: whether labels i and j differ, (n, n).
            embedded: what is compared, of both members, (2n, D).
            margin: m.
        """
        worst = different.float().mean() * margin  # L_U when every distance is 0
        hinged = (margin > 0) & (uniform >= (1 - COLLAPSE_TOLERANCE) * worst) & (align <= COLLAPSE_TOLERANCE * margin)
        centre = embedded.mean(dim=0)
        spread = torch.linalg.vector_norm(embedded - centre, dim=1).max()
        flat = spread <= 1e-6 * torch.linalg.vector_norm(centre)
        collapsed = (hinged | flat) & different.any()
        self.collapsed.copy_(torch.where(collapsed, self.collapsed + 1, 0))

    def check(self, *, skips: bool) -> None:
        """Raise `NonFiniteError` or `CollapseError` if training has gone wrong; `skips` when a GradScaler skips."""
        first, count, collapsed = torch.stack([self.first_non_finite, self.non_finite, self.collapsed]).tolist()
        if count and not skips:
            raise NonFiniteError(
                f"NaN or infinite gradient at iteration {first}. Likely causes: a NaN in the images, a learning rate "
                f"that is too high, or fp16 without a GradScaler."
            )
        if collapsed >= COLLAPSE_PATIENCE:
            raise CollapseError(
                f"the model has collapsed: for {collapsed} corrections all images of the pairs have stood on one "
                f"point, where every gradient is zero and the disagreement only looks perfect. Remedies: warm the "
                f"learning rate up, lower it, use a larger margin, or better pairs."
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The counters."""
        return {name: counter.clone() for name, counter in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, in place."""
        for name, counter in vars(self).items():
            counter.copy_(state[name])
