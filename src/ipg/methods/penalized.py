"""The task loss plus a weighted penalty on the batch: the frame of V-REx, IRM, Fishr, CORAL and RIDG.

    L = L_T + l2 · ‖θ‖² + λ_t · penalty,    λ_t = weight_before in the first `anneal` iterations, then weight
    L / max(1, λ_t)                         with divide, so that a large weight does not lengthen the steps

The schedule and the squared norm, which is over all parameters that are trained, are those of Arjovsky et al.,
"Invariant Risk Minimization", 2019. Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization" (DomainBed),
ICLR 2021, also begin with a fresh optimizer when the weight changes: `restart` sets its state to zero then.

Differs from the papers: their batches have as many images of every environment, so that the mean of the environments'
risks is the mean over images; here batches are pooled and L_T is that of plain training, weighted by class if the run
says so. The penalty is never weighted by class, and is over the environments that the batch has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods.base import Method, Setup
from ipg.methods.options import option, parse_options
from ipg.rationale import HeadTap, find_head, full_precision

__all__ = ["Annealed", "AnnealedOptions", "Outputs", "Penalized", "WeightOptions", "mean_over"]


@dataclass(frozen=True)
class WeightOptions:
    """A constant weight."""

    weight: float = option(1.0, least=0)


@dataclass(frozen=True)
class AnnealedOptions:
    """A weight that changes once."""

    weight: float = option(1.0, least=0)
    weight_before: float = option(1.0, least=0)
    anneal: int = option(0, least=0)
    divide: bool = False
    restart: bool = True
    l2: float = option(0.0, least=0)


class Outputs(NamedTuple):
    """A task batch on its way through the network, in single precision or better."""

    features: Tensor  # (B, D)
    logits: Tensor  # (B, K)
    label: Tensor  # (B,)
    environment: Tensor  # (B,), from 0 on


class Penalized(Method):
    """Base of the methods that add one penalty to the task loss; a subclass says which."""

    Options: ClassVar[type] = WeightOptions
    alone: ClassVar[str] = "compares the images of whole batches, of which each of several processes has a part"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.tap = HeadTap(find_head(setup.model))
        weight = full_precision(self.tap.head.weight.detach())
        self.kept: dict[str, Tensor] = {}
        """What a checkpoint keeps; overwritten in place."""
        self._known = weight.new_zeros(1, dtype=torch.int64)  # environments by name, in order
        if "environments" in self.needs:
            known = cast(ImageTable, setup.table).environment.unique()  # type: ignore[no-untyped-call]
            self._known = known.to(weight.device)
        self._weight = weight.new_full((), self.options.weight)

    @property
    def environments(self) -> int:
        """E, how many environments there are in training."""
        return len(self._known)

    def penalty(self, outputs: Outputs) -> Tensor:
        """The penalty of a batch, a scalar with its graph."""
        raise TypeError(f"{type(self).__name__} does not say what it penalises")

    def weight(self) -> Tensor:
        """The penalty's weight in this iteration, a scalar."""
        return self._weight

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the task loss and the penalty."""
        self.setup.optimizer.zero_grad()
        with self.tap.listen():
            logits = self.setup.logits(batch.image)
        features, _ = self.tap.take()
        loss = self.setup.criterion(logits, batch.label)
        place = torch.searchsorted(self._known, batch.environment)
        penalty = self.penalty(Outputs(full_precision(features), logits, batch.label, place))
        self.combine(loss, penalty).backward()  # type: ignore[no-untyped-call]
        self.update()
        return {"task_loss": loss.detach(), "penalty": penalty.detach()}

    def combine(self, loss: Tensor, penalty: Tensor) -> Tensor:
        """What is minimised."""
        return loss + self.weight() * penalty

    def update(self) -> None:
        """Move the parameters."""
        self.setup.optimizer.step()

    def close(self) -> None:
        """Take the hook off the head."""
        self.tap.remove()

    def state_dict(self) -> dict[str, Any]:
        """What is kept from step to step."""
        return {name: value.clone() for name, value in self.kept.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; tensors keep their place, as captured graphs need."""
        for name, value in self.kept.items():
            value.copy_(state[name])


class Annealed(Penalized):
    """A penalty whose weight changes once; the count of steps is on the device, where a captured step can read it."""

    Options: ClassVar[type] = AnnealedOptions

    @classmethod
    def remark(cls, config: RunConfig, table: ImageTable) -> str | None:
        """Whether the run ends before the weight changes."""
        options = parse_options(cls, config.options)
        total = config.iterations(len(table.indices("train")))
        if options.anneal < total or options.weight == options.weight_before:
            return None
        return (
            f"the penalty of {cls.name} weighs {options.weight_before:g} in its first {options.anneal:,} iterations, "
            f"and a run has {total:,}: it never comes to {options.weight:g}; give -o anneal=… a smaller number"
        )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._before = torch.full_like(self._weight, self.options.weight_before)
        self.kept["steps"] = torch.zeros_like(self._weight, dtype=torch.int64)

    def weight(self) -> Tensor:
        """The weight before or from the annealing step on."""
        return torch.where(self.kept["steps"] >= self.options.anneal, self._weight, self._before)

    def combine(self, loss: Tensor, penalty: Tensor) -> Tensor:
        """The weighted sum and the squared norm, divided by a weight above 1 if so told."""
        total = super().combine(loss, penalty)
        if self.options.l2:
            trained = [value for group in self.setup.optimizer.param_groups for value in group["params"]]
            total = total + self.options.l2 * torch.stack([value.square().sum() for value in trained]).sum()
        return total / self.weight().clamp_min(1) if self.options.divide else total

    def update(self) -> None:
        """Move the parameters, with an optimizer that begins anew at the annealing step."""
        if self.options.restart and self.options.anneal:
            keep = (self.kept["steps"] != self.options.anneal).to(self._weight.dtype)
            entries = self.setup.optimizer.state.values()
            state = [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]
            if state:
                torch._foreach_mul_(state, keep)
        super().update()
        self.kept["steps"] += 1


def mean_over(values: Tensor, present: Tensor) -> Tensor:
    """The mean of `values` (E, …) over the environments that are `present` (E,); 0 where none is."""
    chosen = present.to(values.dtype)
    total: Tensor = torch.tensordot(chosen, values, dims=1)
    return total / chosen.sum().clamp_min(1)
