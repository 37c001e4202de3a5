"""Invariance Pair Guidance under the one loop; the method itself is `ipg.guidance`.

    θ ← θ − η g_C,    g_C = ∇(L_A + L_U) of a batch of pairs
    θ ← θ − η g_T,    g_T = α ‖g_C‖ ∇L_T/‖∇L_T‖ where δ ≥ τ,  clip(∇L_T, 2 max(ε, ‖g_C‖)) elsewhere

L_A draws the rationales of a pair together, L_U keeps those of different labels a margin apart, and δ is the share of
pairs whose members get different answers. α, τ, margin and the others are settings of the run (`ipg train --help`).

Surner, Khelil and Bothmann, "Invariance Pair Guidance: Robustness to Spurious Correlations via Corrective
Gradients", Machine Learning 2026, Algorithm 1.

Differs from the paper: unless the run says otherwise, only every fourth iteration corrects (`every`), the margin is
relative to the first distances, and a run that collapses begins again (`restarts`). What the paper leaves open is
settled in docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from ipg.data.batches import Batch
from ipg.gradients import add_gradients
from ipg.guidance import DrawsPairs, Guidance, Terms
from ipg.methods.base import Method, Need, Setup
from ipg.methods.space import LogUniform, Range, Uniform, ZeroOr

__all__ = ["Ipg", "build_guidance", "guidance_arguments"]


def build_guidance(setup: Setup, **changes: Any) -> Guidance:
    """The `Guidance` that the run's configuration describes; `changes` win over it."""
    return Guidance(setup.model, setup.optimizer, **guidance_arguments(setup) | changes)


def guidance_arguments(setup: Setup) -> dict[str, Any]:
    """What the run's configuration says of a `Guidance`."""
    config = setup.config.suited()
    return {
        "alpha": config.alpha,
        "tau": config.tau,
        "margin": config.margin,
        "every": config.every,
        "floor": config.floor,
        "batch_norm": cast(Literal["train", "eval"], config.batch_norm),
        "distance": config.distance,
        "strict": config.strict,
        "jitter": config.jitter,
        "autocast": setup.autocast,
    }


class Ipg(Method):
    """Two updates an iteration: a corrective one from pairs, then a task one rescaled against it."""

    name: ClassVar[str] = "ipg"
    summary: ClassVar[str] = "Invariance Pair Guidance: corrective updates from pairs, task updates rescaled by them."
    cost: ClassVar[str] = "1 + 2 B_I/(k B_D)"
    needs: ClassVar[frozenset[Need]] = frozenset({"pairs"})
    space: ClassVar[Mapping[str, Range]] = {
        "alpha": Uniform(0.05, 0.95),
        "tau": ZeroOr(0.0, 1.0),
        "margin": LogUniform(1e-2, 10.0),
    }

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.guide = self.build_guide(setup)
        self._corrected = torch.arange(2, device=self.guide.correction.values.device)

    def build_guide(self, setup: Setup) -> Guidance:
        """The guidance of this method."""
        return build_guidance(setup)

    @property
    def due(self) -> bool:
        """Whether the next step corrects."""
        return self.guide.due

    @property
    def iteration(self) -> int:
        """The guide's count of iterations."""
        return self.guide.iteration

    @iteration.setter
    def iteration(self, value: int) -> None:
        self.guide.iteration = value

    def replayed(self) -> None:
        """The guide counts the step, and hears what its correction found."""
        self.guide.replayed()

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One iteration of Algorithm 1."""
        due = self.guide.due
        report = self.guide.step(lambda: self.setup.task_loss(batch), self.setup.pairs)
        return report._asdict() | (self.guide.spread._asdict() if due else {}) | self.paced(due)

    def slopes(self, loss_of: Callable[[Terms], Tensor]) -> tuple[Terms, Sequence[Tensor | None]]:
        """What the next batch of pairs says, and the gradient of what `loss_of` makes of it, by the guide's parameters.

        For methods that weigh the losses of pairs in their own way. The gradient is taken apart from that of the task:
        while pairs run dropout is off, and checkpointed layers run again in the backward pass.
        """
        guide = self.guide
        with guide.comparing():
            terms = guide.terms(cast(DrawsPairs, self.setup.pairs).draw())
            gradients = guide.gradients(loss_of(terms), guide.parameters())
        if guide.peers.sharded:
            self.setup.optimizer.zero_grad()  # where FSDP's backward pass has left them, averaged
        else:
            guide.peers.mean_(gradient for gradient in gradients if gradient is not None)
        return Terms._make(term.detach() for term in terms), gradients

    def summed(self, batch: Batch, loss_of: Callable[[Terms], Tensor]) -> dict[str, Tensor]:
        """One update: the task loss and what `loss_of` makes of pairs, the task loss alone where none are due."""
        guide, optimizer = self.guide, self.setup.optimizer
        due = guide.due
        optimizer.zero_grad()
        loss = self.setup.task_loss(batch)
        terms, slopes = self.slopes(loss_of) if due else (None, ())
        guide.count(terms)
        loss.backward()  # type: ignore[no-untyped-call]
        if due:
            add_gradients(guide.parameters(), slopes)
        optimizer.step()
        return {"task_loss": loss.detach()} | ({} if terms is None else terms._asdict()) | self.paced(due)

    def paced(self, due: bool) -> dict[str, Tensor]:
        """`corrected`, 1 or 0, where `every` follows the disagreement: its mean is the share of steps that correct."""
        return {"corrected": self._corrected[int(due)]} if self.guide.every == "auto" else {}

    def check(self) -> None:
        """Raise on a collapse or a non-finite gradient."""
        self.guide.check()

    def close(self) -> None:
        """Leave the network as a plain one."""
        self.guide.close()

    def state_dict(self) -> dict[str, Any]:
        """The guide's state."""
        return self.guide.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.guide.load_state_dict(state)
