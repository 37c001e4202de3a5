"""CORAL: the features of all environments shall have the same means and covariances.

    L = L_T + γ · 2/(E (E − 1)) Σ_{e<e'} ( mean((μ_e − μ_e')²) + mean((C_e − C_e')²) )

μ_e and C_e (divided by n − 1) are of the features z in environment e; the means are over coordinates. Since
Σ_{e<e'} ‖a_e − a_e'‖² = E Σ_e ‖a_e − ā‖², no pair of environments is formed.

Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation", ECCV Workshops 2016, in the form for
several environments of DomainBed, which adds the means.

Differs from DomainBed: batches are pooled, so that L_T is plain training's (`ipg.methods.penalized`); an environment
with fewer than two images in a batch has no covariance and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ipg.methods.base import Need
from ipg.methods.parts import membership
from ipg.methods.penalized import Outputs, Penalized, mean_over
from ipg.methods.space import LogUniform, Range

__all__ = ["Coral"]


class Coral(Penalized):
    """Task loss plus the differences between the environments' feature means and covariances."""

    name: ClassVar[str] = "coral"
    summary: ClassVar[str] = "CORAL: aligns feature means and covariances between environments."
    needs: ClassVar[frozenset[Need]] = frozenset({"environments"})
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(0.1, 10)}

    def penalty(self, outputs: Outputs) -> Tensor:
        """The mean over pairs of environments, as a variance over environments."""
        features = outputs.features
        member = membership(outputs.environment, self.environments, features.dtype)  # (B, E)
        counts = member.sum(dim=0)
        means = (member.T @ features) / counts.clamp_min(1)[:, None]  # (E, D)
        centred = features - member @ means  # (B, D)
        products = torch.einsum("be,bi,bj->eij", member, centred, centred)
        covariances = products / (counts - 1).clamp_min(1)[:, None, None]  # (E, D, D)
        present = counts > 1
        number = present.sum()
        spread = [
            mean_over((values - mean_over(values, present)).square().flatten(start_dim=1).mean(dim=1), present)
            for values in (means, covariances)
        ]
        return (spread[0] + spread[1]) * 2 * number / (number - 1).clamp_min(1)
