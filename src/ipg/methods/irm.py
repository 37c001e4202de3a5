"""IRM, invariant risk minimisation: one classifier shall be the best for every environment.

    L = L_T + λ · 1/E Σ_e D_e,    D_e = (∂R_e(w·f)/∂w at w = 1)²                       penalty=squared
                                  D_e = (∂R_e/∂w of even images) · (of odd images)     penalty=split   (default)

R_e is the mean cross-entropy of environment e. Its derivative by the scale w has a closed form, the mean over images of
Σ_k p_k o_k − o_y with logits o and probabilities p, so no second backward pass is needed.

Arjovsky et al., "Invariant Risk Minimization", 2019: IRMv1 (squared), and its unbiased estimate from two parts of a
batch (split). The defaults are those of DomainBed; the authors' ColoredMNIST has penalty=squared,
weight=91257.18613115903, anneal=190, divide=true, restart=false and l2=0.00110794568 over full batches.

Differs from the paper: batches are pooled, so that L_T is plain training's and the penalty is over the environments of
a batch (`ipg.methods.penalized`). A full batch of environments of one size, not weighted by class, is the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ipg.methods.base import Need
from ipg.methods.options import option
from ipg.methods.parts import means_by, membership
from ipg.methods.penalized import Annealed, AnnealedOptions, Outputs, mean_over
from ipg.methods.space import Choice, LogUniform, Range

__all__ = ["Irm"]


@dataclass(frozen=True)
class IrmOptions(AnnealedOptions):
    """DomainBed's defaults, and which estimate of the penalty."""

    weight: float = option(100.0, least=0)
    anneal: int = option(500, least=0)
    penalty: Literal["split", "squared"] = "split"


class Irm(Annealed):
    """Task loss plus the squared derivative of every environment's risk by the scale of the logits."""

    name: ClassVar[str] = "irm"
    summary: ClassVar[str] = "IRM: penalises a classifier that rescaling would improve in any environment."
    needs: ClassVar[frozenset[Need]] = frozenset({"environments"})
    Options: ClassVar[type] = IrmOptions
    space: ClassVar[Mapping[str, Range]] = {
        "weight": LogUniform(0.1, 1e5),
        "anneal": Choice((1, 10, 100, 1000, 10_000)),
    }

    def penalty(self, outputs: Outputs) -> Tensor:
        """The mean of D_e; an environment of a single image has no halves and is left out of `split`."""
        logits, label = outputs.logits, outputs.label
        slope = (logits.softmax(dim=1) * logits).sum(dim=1) - logits.gather(1, label[:, None])[:, 0]  # (B,)
        if self.options.penalty == "squared":
            slopes, counts = means_by(slope, outputs.environment, self.environments)  # (E,)
            return mean_over(slopes.square(), counts > 0)
        member = membership(outputs.environment, self.environments, torch.int64)  # (B, E)
        rank = (member.cumsum(dim=0) * member).sum(dim=1) - 1  # (B,), position among those of the environment
        half = 2 * outputs.environment + rank % 2
        slopes, counts = means_by(slope, half, 2 * self.environments)
        both = (counts[::2] > 0) & (counts[1::2] > 0)  # (E,)
        return mean_over(slopes[::2] * slopes[1::2], both)  # not `prod`, whose gradient waits for the device
