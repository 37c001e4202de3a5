"""V-REx, variance risk extrapolation: the risks of all environments shall be alike.

    L = L_T + β · 1/E Σ_e (R_e − R̄)²,    R_e the mean cross-entropy of environment e,  R̄ = 1/E Σ_e R_e

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation", ICML 2021. The defaults are those of
DomainBed. The authors' ColoredMNIST adds two risks and weighs their squared difference, four variances, by 1e4:
weight=2e4, weight_before=2, anneal=100, divide=true, restart=false and l2=5e-4 over full batches are its half.

Differs from the paper: batches are pooled, so that L_T is plain training's and the penalty is over the environments of
a batch (`ipg.methods.penalized`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from ipg.methods.base import Need
from ipg.methods.options import option
from ipg.methods.parts import means_by
from ipg.methods.penalized import Annealed, AnnealedOptions, Outputs, mean_over
from ipg.methods.space import Choice, LogUniform, Range

__all__ = ["Vrex"]


@dataclass(frozen=True)
class VrexOptions(AnnealedOptions):
    """DomainBed's defaults."""

    weight: float = option(10.0, least=0)
    anneal: int = option(500, least=0)


class Vrex(Annealed):
    """Task loss plus the variance of the environments' risks."""

    name: ClassVar[str] = "vrex"
    summary: ClassVar[str] = "V-REx: penalises the variance of the risk over environments."
    needs: ClassVar[frozenset[Need]] = frozenset({"environments"})
    Options: ClassVar[type] = VrexOptions
    space: ClassVar[Mapping[str, Range]] = {
        "weight": LogUniform(0.1, 1e5),
        "anneal": Choice((1, 10, 100, 1000, 10_000)),
    }

    def penalty(self, outputs: Outputs) -> Tensor:
        """The population variance of the risks."""
        losses = F.cross_entropy(outputs.logits, outputs.label, reduction="none")
        risks, counts = means_by(losses, outputs.environment, self.environments)  # (E,)
        present = counts > 0
        return mean_over((risks - mean_over(risks, present)).square(), present)
