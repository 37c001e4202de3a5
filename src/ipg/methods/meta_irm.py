"""meta-IRM: a step that helps one environment shall help the others, too.

    θ_i = θ − a ∇R_i(θ)                                              one inner step on environment i
    L   = 1/n Σ_{i, j ≠ i} R_j(θ_i) + λ · std{R_j(θ_i)}              n = E (E − 1) ordered pairs of environments

R_e is the mean cross-entropy of environment e; the gradient of L goes through the inner step (MAML, second order). The
authors' own ablations:

    weight=0            without the spread λ
    order=first         the inner gradient is taken for a constant
    outer=same          R_i(θ_i): the same environment inside and outside

Bae, Choi and Lee, "Meta-Learned Invariant Risk Minimization", 2021 (arXiv:2103.12947).

Differs from the paper: its code is not public, nor are its rates, so the defaults are ours. The mean over pairs stands
where it has the sum, so that rates are those of plain training; the spread is that of the population. Batches are
pooled, no class is weighted, and pairs are of the environments that a batch has: a batch of a single one makes an
ordinary step on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.evaluation.groups import logits_of
from ipg.methods.base import Method, Need, Setup
from ipg.methods.options import option
from ipg.methods.parts import means_by
from ipg.methods.penalized import mean_over
from ipg.methods.space import LogUniform, Range
from ipg.rationale import full_precision, unwrap

__all__ = ["MetaIrm"]


@dataclass(frozen=True)
class MetaIrmOptions:
    """The inner step, and how much the spread counts."""

    inner_rate: float = option(0.1, least=0)
    weight: float = option(1.0, least=0)
    order: Literal["second", "first"] = "second"
    outer: Literal["other", "same"] = "other"


class MetaIrm(Method):
    """The loss of every environment after a step on another, and the spread of these losses."""

    name: ClassVar[str] = "meta_irm"
    summary: ClassVar[str] = "meta-IRM: the loss of each environment after a step on another, and its spread."
    weighs_classes: ClassVar[bool] = False
    cost: ClassVar[str] = "3 E + 1"
    needs: ClassVar[frozenset[Need]] = frozenset({"environments"})
    alone: ClassVar[str] = "compares the images of whole batches, of which each of several processes has a part"
    compiles: ClassVar[bool] = False
    Options: ClassVar[type] = MetaIrmOptions
    space: ClassVar[Mapping[str, Range]] = {
        "inner_rate": LogUniform(1e-3, 1),
        "weight": LogUniform(0.1, 100),
        "learning_rate": LogUniform(1e-4, 1e-2),
    }

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.network = unwrap(setup.model)  # a compiled one has no second derivatives
        self.parameters = {name: value for name, value in self.network.named_parameters() if value.requires_grad}
        known = cast(ImageTable, setup.table).environment.unique()  # type: ignore[no-untyped-call]
        self._known = known.to(next(iter(self.parameters.values())).device)
        same = torch.eye(len(known), dtype=torch.bool, device=self._known.device)
        self._compared = same if self.options.outer == "same" else ~same  # (E, E), inside by outside

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the losses after inner steps."""
        options, optimizer = cast(MetaIrmOptions, self.options), self.setup.optimizer
        optimizer.zero_grad()
        risks, present = self._risks(self.parameters, batch)
        after = torch.stack([self._risks(self._stepped(risk), batch)[0] for risk in risks])  # (E, E), inside by outside
        compared = (self._compared & present[:, None] & present).flatten()
        losses = after.flatten()
        task_loss = torch.where(compared.any(), mean_over(losses, compared), mean_over(risks, present))
        number = compared.sum(dtype=losses.dtype).clamp_min(1)
        away = (losses - mean_over(losses, compared)) * compared
        spread: Tensor = torch.linalg.vector_norm(away) / number.sqrt()  # its gradient at 0 is 0
        (task_loss + options.weight * spread).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {"task_loss": task_loss.detach(), "spread": spread.detach()}

    def _stepped(self, risk: Tensor) -> dict[str, Tensor]:
        """The parameters after a step of gradient descent on `risk`."""
        options, values = cast(MetaIrmOptions, self.options), self.parameters
        gradients = torch.autograd.grad(
            risk,
            list(values.values()),
            retain_graph=True,
            create_graph=options.order == "second",
            materialize_grads=True,
        )
        return {
            name: value - options.inner_rate * gradient
            for (name, value), gradient in zip(values.items(), gradients, strict=True)
        }

    def _risks(self, parameters: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """R of every environment under `parameters`, (E,), and which of them the batch has, (E,)."""
        setup = self.setup
        with torch.autocast(batch.image.device.type, dtype=setup.autocast, enabled=setup.autocast is not None):
            logits = logits_of(functional_call(self.network, dict(parameters), (batch.image,)))
        losses = F.cross_entropy(full_precision(logits), batch.label, reduction="none")
        place = torch.searchsorted(self._known, batch.environment)
        risks, counts = means_by(losses, place, len(self._known))
        return risks, counts > 0
