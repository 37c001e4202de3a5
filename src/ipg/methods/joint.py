"""Joint Optimization, an ablation of the paper: the pair loss and the task loss without the rescaling.

The paper applies "the task loss and the alignment loss … consecutively" under the heading "sum of losses"; the order
is not fixed. Here are all readings:

    order=task_first        θ ← θ − η g_T;  θ ← θ − η g_A     (default)
    order=alignment_first   θ ← θ − η g_A;  θ ← θ − η g_T
    order=sum               θ ← θ − η (g_T + g_A)
    loss=alignment          g_A = ∇L_A                        (default)
    loss=corrective         g_A = ∇(L_A + L_U)

Differs from the paper, which applies both at every step: with `every` above 1, the default, the iterations between take
the task loss alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from torch import Tensor

from ipg.data.batches import Batch
from ipg.guidance import DrawsPairs, Guidance
from ipg.methods.base import Setup
from ipg.methods.ipg import Ipg, build_guidance
from ipg.methods.space import Choice, Range

__all__ = ["Joint"]


@dataclass(frozen=True)
class JointOptions:
    """Which reading of the paper's ablation."""

    order: Literal["task_first", "alignment_first", "sum"] = "task_first"
    loss: Literal["alignment", "corrective"] = "alignment"


class Joint(Ipg):
    """Task loss and pair loss side by side, neither rescaled."""

    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "Task and pair loss without rescaling: an ablation of the paper."
    Options: ClassVar[type] = JointOptions
    space: ClassVar[Mapping[str, Range]] = {
        "order": Choice(("task_first", "alignment_first", "sum")),
        "loss": Choice(("alignment", "corrective")),
    }

    def build_guide(self, setup: Setup) -> Guidance:
        """IPG's guidance; with the alignment loss alone the margin is 0."""
        options = cast(JointOptions, self.options)
        return build_guidance(setup, **({"margin": 0.0} if options.loss == "alignment" else {}))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One iteration: one update with the sum of losses, or two."""
        order, due = cast(JointOptions, self.options).order, self.guide.due
        if order == "sum":
            return self.summed(batch, lambda terms: terms.alignment + terms.uniformity)
        if order == "alignment_first":
            self._correct()
        loss = self._task_update(batch)
        if order == "task_first":
            self._correct()
        correction = self.guide.correction
        return {
            "task_loss": loss,
            "alignment": correction.alignment.clone(),
            "uniformity": correction.uniformity.clone(),
            "disagreement": correction.disagreement.clone(),
            **self.paced(due),
        }

    def _correct(self) -> None:
        self.setup.optimizer.zero_grad()
        self.guide.correct(cast(DrawsPairs, self.setup.pairs))

    def _task_update(self, batch: Batch) -> Tensor:
        optimizer = self.setup.optimizer
        optimizer.zero_grad()
        loss = self.setup.task_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
