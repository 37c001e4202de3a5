"""GALS with masks in place of language: the loss shall not change with what lies outside of the object.

    L = L_T + λ · mean |G − G ⊙ A|,    G = ∂L_T/∂x

x is the normalised image, A its mask in [0, 1], the mean over channels and pixels of the images that have one. `gals`
is the method of the paper, whose A is where CLIP looks; this one needs no language and is its bound from above.

Petryk, Dunlap, Nasseri, Gonzalez, Darrell and Rohrbach, "On Guiding Visual Attention with Language Specification", CVPR
2022; suppressing gradients outside of a mask is Ross, Hughes and Doshi-Velez, "Right for the Right Reasons", IJCAI
2017.

Differs from the paper: A is a mask, not attention, hence another name. L_T is the run's own loss
(`ipg.methods.masked`); for two classes the authors' sigmoid loss is the softmax loss of one logit and 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from ipg.data.batches import Batch
from ipg.methods.base import Setup
from ipg.methods.masked import Masked, normalization, present
from ipg.methods.options import option
from ipg.methods.space import LogUniform, Range

__all__ = ["GalsMask", "GalsMaskOptions", "outside_slope"]


@dataclass(frozen=True)
class GalsMaskOptions:
    """λ, and whether what counts lies outside of the masks."""

    weight: float = option(1e4, least=0)
    outside: bool = False


class GalsMask(Masked):
    """Task loss plus the gradient by the pixels outside of the object."""

    name: ClassVar[str] = "gals_mask"
    summary: ClassVar[str] = "GALS with masks: the loss shall not depend on pixels outside of the object."
    Options: ClassVar[type] = GalsMaskOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(1e2, 1e6)}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        _, self.spread = normalization(setup)

    def penalty(self, image: Tensor, logits: Tensor, loss: Tensor, batch: Batch) -> Tensor:
        """How much the loss depends on what lies outside."""
        (slope,) = torch.autograd.grad(loss, image, create_graph=True)
        region = 1 - batch.mask if cast(GalsMaskOptions, self.options).outside else batch.mask
        return outside_slope(slope * self.spread, region, present(batch.mask))


def outside_slope(slope: Tensor, region: Tensor, counted: Tensor) -> Tensor:
    """The mean of |G − G ⊙ A| from slopes G (B, C, H, W) and regions A (B, 1, H, W), over the images `counted` (B,)."""
    each = (slope - slope * region).abs().flatten(start_dim=1).mean(dim=1)  # (B,)
    return torch.where(counted, each, 0).sum() / counted.sum().clamp_min(1)
