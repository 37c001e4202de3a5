"""RIDG, rationale invariance: an image's rationale shall be that of its class.

    R_i = (W_k ⊙ z_i)_k ∈ R^{K×D},    bank_c ← mean of R_i over class c at first, then (1 − μ) bank_c + μ mean
    L = L_T + weight · Σ_{c in the batch} mean_{i ∈ c, k} ‖R_i[k] − bank_c[k]‖²

The bank is brought up to date before it is compared with, and no gradient passes through it.

Chen et al., "Domain Generalization via Rationale Invariance", ICCV 2023; the mean over k and the sum over
classes are those of the authors' code. It needs no environments.

Differs from the paper: in nothing but that L_T is weighted by class where the run is. The bank has K² D numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ipg.methods.base import Setup
from ipg.methods.options import option
from ipg.methods.parts import class_rows, means_by
from ipg.methods.penalized import Outputs, Penalized
from ipg.methods.space import LogUniform, Range
from ipg.rationale import full_precision

__all__ = ["Ridg"]


@dataclass(frozen=True)
class RidgOptions:
    """The authors' defaults."""

    weight: float = option(0.01, least=0)
    momentum: float = option(0.001, least=0, most=1)


class Ridg(Penalized):
    """Task loss plus the distances of rationales from the running mean of their class."""

    name: ClassVar[str] = "ridg"
    summary: ClassVar[str] = "RIDG: draws the rationales of a class to their running mean."
    Options: ClassVar[type] = RidgOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(1e-3, 1), "momentum": LogUniform(1e-4, 0.1)}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        classes, size = class_rows(self.tap.head.weight).shape
        self.kept["bank"] = self._weight.new_zeros(classes, classes, size)
        self.kept["seen"] = torch.zeros_like(self._weight, dtype=torch.bool).repeat(classes)

    def penalty(self, outputs: Outputs) -> Tensor:
        """The sum over classes of the mean squared distance to the bank."""
        label, classes = outputs.label, len(self.kept["seen"])
        rationales = outputs.features[:, None] * class_rows(full_precision(self.tap.head.weight))  # (B, K, D)
        self._keep(rationales.detach(), label)
        apart = (rationales - self.kept["bank"][label]).square().sum(dim=2).mean(dim=1)  # (B,)
        means, _ = means_by(apart, label, classes)  # 0 for a class that the batch lacks
        return means.sum()

    def _keep(self, rationales: Tensor, label: Tensor) -> None:
        """Bring the bank up to date with the classes of a batch."""
        bank, seen, share = self.kept["bank"], self.kept["seen"], self.options.momentum
        means, counts = means_by(rationales, label, len(seen))  # (K, K, D)
        present = counts > 0
        moved = torch.where(seen[:, None, None], (1 - share) * bank + share * means, means)
        bank.copy_(torch.where(present[:, None, None], moved, bank))
        seen |= present
