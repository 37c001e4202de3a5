"""GroupDRO: train on the groups in proportion to how badly they do.

Sagawa, Koh, Hashimoto and Liang, "Distributionally Robust Neural Networks for Group Shifts: On the Importance of
Regularization for Worst-Case Generalization", ICLR 2020, Algorithm 1. Batches are drawn with all groups alike; with
L_g the mean loss of group g in the batch (0 where it has none) and q uniform at the start, each iteration

    q_g ← q_g exp(η (L_g + C/√n_g)),    q ← q / Σ_g q_g,    L = Σ_g q_g L_g

Differs from the paper: in nothing but the groups without training images, two in Waterbirds-100, whose q_g is 0 from
the start. C is a number (0 in the authors' commands); their automatic choice of it is left out. Losses are not
weighted by class, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ipg.collectives import find_peers
from ipg.data.batches import Batch, Sampling
from ipg.data.table import ImageTable
from ipg.methods.base import Method, Need, Setup
from ipg.methods.options import option
from ipg.methods.parts import means_by
from ipg.methods.rwg import balanced_weights
from ipg.methods.space import LogUniform, Range, Uniform

__all__ = ["GroupDro"]


@dataclass(frozen=True)
class GroupDroOptions:
    """How fast the weights of the groups move, and how much small groups are favoured."""

    step_size: float = option(0.01, least=0)
    adjustment: float = option(0.0, least=0)


class GroupDro(Method):
    """Training on the groups that do worst."""

    name: ClassVar[str] = "groupdro"
    summary: ClassVar[str] = "Group DRO: groups weigh the more in the loss the worse they do."
    weighs_classes: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})
    Options: ClassVar[type] = GroupDroOptions
    space: ClassVar[Mapping[str, Range]] = {"step_size": LogUniform(1e-3, 1e-1), "adjustment": Uniform(0.0, 5.0)}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options, table = cast(GroupDroOptions, self.options), cast(ImageTable, setup.table)
        counts = torch.bincount(table.group, minlength=len(table.group_names))  # (G,)
        wide = next(setup.model.parameters()).dtype
        self.peers = find_peers(setup.model, "auto")
        self.step_size = options.step_size
        self.adjustment = options.adjustment / counts.clamp_min(1).to(wide).sqrt()  # (G,)
        self.weights = (counts > 0).to(wide) / (counts > 0).sum()  # (G,), q

    @classmethod
    def sampling(cls, table: ImageTable, options: Any, *, seed: int) -> Sampling:
        """Draws with replacement, groups alike."""
        del options, seed
        return Sampling(weights=balanced_weights(table))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Move the weights of the groups, then one gradient step on the weighted loss."""
        optimizer = self.setup.optimizer
        optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {"task_loss": loss.detach(), "largest_weight": self.weights.max()}

    def loss(self, batch: Batch) -> Tensor:
        """Σ_g q_g L_g with the weights that this batch leads to; of several processes, this one's part."""
        means, counts = means_by(self.setup.losses(batch), batch.group, len(self.weights))
        part = self.peers.size * counts / self.peers.sum(counts).clamp_min(1)  # 1 or 0 for a process alone
        own = means * part  # its mean over processes is L_g
        group_loss = self.peers.sum(own) / self.peers.size
        self.weights.mul_(torch.exp(self.step_size * (group_loss + self.adjustment)))
        self.weights.div_(self.weights.sum())
        return self.weights @ own

    def state_dict(self) -> dict[str, Any]:
        """The weights of the groups."""
        return {"weights": self.weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.weights.copy_(state["weights"])
