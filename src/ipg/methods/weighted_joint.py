"""Joint training with a weight: the corrective loss as a plain regulariser of the task loss, in one update.

What Surner, Khelil and Bothmann, "Invariance Pair Guidance", Machine Learning 2026, say is not enough: with L_A and L_U
as in `ipg.guidance`,

    θ ← θ − η ∇(L_T + λ (L_A + L_U))

Differs from the paper: its ablation has no weight; `joint` is that one, and with order=sum and loss=corrective the case
λ = 1 of this. With `every` above 1 the iterations between take the task loss alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from ipg.data.batches import Batch
from ipg.methods.ipg import Ipg
from ipg.methods.options import option
from ipg.methods.space import LogUniform, Range

__all__ = ["WeightedJoint"]


@dataclass(frozen=True)
class WeightedJointOptions:
    """How much the corrective loss counts."""

    weight: float = option(1.0, least=0)


class WeightedJoint(Ipg):
    """One update with the task loss and a multiple of the corrective loss."""

    name: ClassVar[str] = "joint_weighted"
    summary: ClassVar[str] = "Task loss plus a weight times IPG's corrective loss, in one update."
    Options: ClassVar[type] = WeightedJointOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(1e-2, 1e2)}

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the weighted sum, or on the task loss where no pairs are due."""
        weight = cast(WeightedJointOptions, self.options).weight
        return self.summed(batch, lambda terms: weight * (terms.alignment + terms.uniformity))
