"""Fishr: the gradients of the images shall vary alike in every environment.

    v_e = Var_{i ∈ e}(g_i),    g_i = (p_i − e_{y_i}) [z_i, 1]^T, the gradient of image i by the head
    penalty = Σ_e ‖v_e − v̄‖²                                                  form=plain
    penalty = 1/E Σ_e mean((a_e − ā)²),   a_e = u_e/(1 − γ)                    form=averaged   (default)
              u_e ← γ u_e + (1 − γ) v_e,  no gradient through the old u_e, which begins at 0

Variances are over the images of an environment (divided by their number) and for each coordinate by itself. They come
from two matrix products, so that no image's gradient is built:  v_e = mean(a² z²) − mean(a z)²  with a = p − e_y.

Rame, Dancette and Cord, "Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization", ICML 2022. The
averaged form and all defaults are those of DomainBed; the authors' ColoredMNIST has form=plain with the schedule of
IRM: weight_before=1, weight=91257.18613115903, anneal=190, divide=true, restart=false, l2=0.00110794568.

Differs from the paper: batches are pooled, so that L_T is plain training's (`ipg.methods.penalized`); an environment
that a batch lacks keeps its average and is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ipg.methods.base import Need, Setup
from ipg.methods.options import option
from ipg.methods.parts import membership
from ipg.methods.penalized import Annealed, AnnealedOptions, Outputs, mean_over
from ipg.methods.space import LogUniform, Range, Uniform, Whole

__all__ = ["Fishr"]


@dataclass(frozen=True)
class FishrOptions(AnnealedOptions):
    """DomainBed's defaults, and which form."""

    weight: float = option(1000.0, least=0)
    weight_before: float = option(0.0, least=0)
    anneal: int = option(1500, least=0)
    form: Literal["averaged", "plain"] = "averaged"
    average: float = option(0.95, least=0, most=0.9999)


class Fishr(Annealed):
    """Task loss plus the differences between the environments' gradient variances."""

    name: ClassVar[str] = "fishr"
    summary: ClassVar[str] = "Fishr: penalises gradient variances of the head that differ between environments."
    needs: ClassVar[frozenset[Need]] = frozenset({"environments"})
    Options: ClassVar[type] = FishrOptions
    space: ClassVar[Mapping[str, Range]] = {
        "weight": LogUniform(10, 1e4),
        "anneal": Whole(0, 5000),
        "average": Uniform(0.9, 0.99),
    }

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.options.form == "averaged":
            size = sum(parameter.numel() for parameter in self.tap.head.parameters())
            self.kept["variance"] = self._weight.new_zeros(self.environments, size)  # (E, K (D + 1))

    def penalty(self, outputs: Outputs) -> Tensor:
        """How far the variances lie from their mean over environments."""
        variance, present = self._variance(outputs)
        plain = self.options.form == "plain"
        compared = variance if plain else self._averaged(variance, present) / (1 - self.options.average)
        apart = (compared - mean_over(compared, present)).square()  # (E, K (D + 1))
        if plain:
            return (apart * present[:, None]).sum()
        return mean_over(apart.mean(dim=1), present)

    def _variance(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """v, (E, K (D + 1)), and which environments the batch has, (E,)."""
        logits, inputs = outputs.logits, outputs.features
        error = logits.softmax(dim=1) - membership(outputs.label, logits.shape[1], logits.dtype)  # (B, K)
        error = error[:, -self.tap.head.out_features :]  # of a head with one output only σ(o) − y
        if self.tap.head.bias is not None:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)  # (B, D + 1)
        member = membership(outputs.environment, self.environments, logits.dtype)  # (B, E)
        counts = member.sum(dim=0)
        member = member / counts.clamp_min(1)
        mean = torch.einsum("be,bk,bd->ekd", member, error, inputs)
        square = torch.einsum("be,bk,bd->ekd", member, error.square(), inputs.square())
        return (square - mean.square()).flatten(start_dim=1), counts > 0

    def _averaged(self, variance: Tensor, present: Tensor) -> Tensor:
        """u, the moving average with this batch's variance in it."""
        old, share = self.kept["variance"], self.options.average
        new = torch.where(present[:, None], share * old + (1 - share) * variance, old)
        old.copy_(new.detach())
        return new
