"""CGGD, constraint-guided gradient descent, with the alignment of pairs as its constraint.

    θ ← θ − η (g_T + R ‖g_T‖ d),    d = g_A/‖g_A‖ where L_A > tolerance,  0 where the constraint is met

g_T is the gradient of the task loss, g_A that of L_A, the mean distance between the rationales of a pair. With R > 1
the constraint wins wherever the two disagree. IPG turns the roles round: it rescales the task gradient.

Van Baelen and Karsmakers, "Constraint guided gradient descent: Training with inequality constraints with applications
in regression and semantic segmentation", Neurocomputing 2023.

Differs from the paper: its constraints are on outputs, each with a direction of its own; here there is one for the
batch of pairs, and its direction is in the parameters. R is constant, where the authors' code raises it with the number
of batches that meet the constraint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ipg.data.batches import Batch
from ipg.gradients import add_gradients, global_norm
from ipg.guidance import Guidance
from ipg.methods.base import Setup
from ipg.methods.ipg import Ipg, build_guidance
from ipg.methods.options import option
from ipg.methods.space import Choice, LogUniform, Range

__all__ = ["Cggd"]


@dataclass(frozen=True)
class CggdOptions:
    """How strong the constraint is, and from where on it acts."""

    factor: float = option(1.5, least=0)
    tolerance: float = option(0.01, least=0)


class Cggd(Ipg):
    """A task step with a push along the constraint's gradient while pairs are not aligned."""

    name: ClassVar[str] = "cggd"
    summary: ClassVar[str] = "Constraint-guided gradient descent: the pairs' alignment as a constraint on task steps."
    cost: ClassVar[str] = "1 + 2 B_I/(k B_D)"
    Options: ClassVar[type] = CggdOptions
    space: ClassVar[Mapping[str, Range]] = {"factor": Choice((1.1, 1.5, 3.0, 10.0)), "tolerance": LogUniform(1e-3, 1)}

    def build_guide(self, setup: Setup) -> Guidance:
        """IPG's guidance without the uniformity term; it compares the pairs and counts the iterations."""
        return build_guidance(setup, margin=0.0)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One update; between the iterations that are due it is plain training."""
        guide, optimizer = self.guide, self.setup.optimizer
        due = guide.due
        optimizer.zero_grad()
        terms, push = self.slopes(lambda terms: terms.alignment) if due else (None, ())
        guide.count(terms)
        loss = self.setup.task_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        values: dict[str, Tensor] = {}
        if terms is not None:
            values = {"alignment": terms.alignment, "disagreement": terms.disagreement}
            values["violated"] = self._push(push, terms.alignment)
        optimizer.step()
        return {"task_loss": loss.detach()} | values | self.paced(due)

    def _push(self, push: Sequence[Tensor | None], alignment: Tensor) -> Tensor:
        """Add the constraint's direction to the task gradient; returns whether it was violated, as 0 or 1."""
        parameters = self.guide.parameters()
        task = global_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        length = global_norm([gradient for gradient in push if gradient is not None])
        violated: Tensor = (alignment > self.options.tolerance) & (length > 0)
        scale = torch.where(violated, self.options.factor * task / length, 0.0)
        add_gradients(parameters, [None if gradient is None else gradient * scale for gradient in push])
        return violated.to(alignment.dtype)
