"""Continuous Correction, an ablation of the paper: the invariance condition is never met, τ = 0 with δ ≥ τ.

    θ ← θ − η g_C,    g_C = ∇(L_A + L_U)
    θ ← θ − η g_T,    g_T = α ‖g_C‖ ∇L_T/‖∇L_T‖ always

Where IPG's own τ is 0, as on ColoredMNIST and Waterbirds-100, the two are one algorithm.

Differs from the paper: as IPG does (`ipg.methods.ipg`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ipg.guidance import Guidance
from ipg.methods.base import Setup
from ipg.methods.ipg import Ipg, build_guidance
from ipg.methods.space import Range

__all__ = ["Continuous"]


class Continuous(Ipg):
    """IPG that always rescales."""

    name: ClassVar[str] = "continuous"
    summary: ClassVar[str] = "IPG with tau fixed at 0, its default: every task update is rescaled. An ablation."
    space: ClassVar[Mapping[str, Range]] = {name: Ipg.space[name] for name in ("alpha", "margin")}

    def build_guide(self, setup: Setup) -> Guidance:
        """IPG's guidance with τ = 0 and `>=`."""
        return build_guidance(setup, tau=0.0, strict=False)
