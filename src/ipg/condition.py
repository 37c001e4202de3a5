"""The invariance condition: what it makes of the task gradient, as a pure function. This file needs torch alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["TaskScale", "task_scale"]


class TaskScale(NamedTuple):
    """What the invariance condition makes of the task gradient; every field a scalar tensor."""

    scale: Tensor
    """The factor on the task gradient."""
    violated: Tensor
    """Whether δ ≥ τ."""
    clipped: Tensor
    """Whether the condition was met and the task gradient longer than 2 max(ε, ‖g_C‖)."""
    floored: Tensor
    """Whether that length came from the floor ε."""


def task_scale(
    task_norm: Tensor,
    correction_norm: Tensor,
    disagreement: Tensor,
    *,
    alpha: float,
    tau: float,
    floor: float,
    strict: bool = False,
) -> TaskScale:
    """The rule of Algorithm 1, lines 13 to 19, as a pure function of ‖g_T‖, ‖g_C‖ and δ.

    `strict` compares δ > τ, as the paper's corollary does, in place of δ ≥ τ.
    """
    violated = disagreement > tau if strict else disagreement >= tau
    limit = 2 * correction_norm.clamp_min(floor)
    too_long = task_norm > limit
    fixed = torch.where(task_norm > 0, alpha * correction_norm / task_norm, 0.0)
    scale = torch.where(violated, fixed, torch.where(too_long, limit / task_norm, 1.0))
    clipped = too_long & ~violated
    return TaskScale(scale, violated, clipped, clipped & (correction_norm < floor))
