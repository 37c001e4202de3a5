"""EPG, the energy pointing game: what speaks for the class shall lie inside the object's box.

    L = L_T + λ Σ_i (1 − EPG_i),    EPG_i = Σ_p M_ip A⁺_ip / Σ_p A⁺_ip

over the annotated images i of a batch and their pixels p. A is the attribution of the true class's logit o_y, summed
over channels, A⁺ its positive part, M the box (or the mask, or what lies outside of it):

    A = Σ_c x_c · ∂o_y/∂x_c    x the normalised image                                  attribution=ixg
    A = Σ_c x_c · [W(x)]_yc    o = W(x) x, W(x) held constant for this derivative       attribution=bcos

IxG is for any network; on the bias-free `xdnn_…` it is complete, Σ A = o_y. `bcos_…` networks have weights W(x) of
their own, complete too. Where Σ A⁺ is below 1e-7 the loss of the image is 1 − Σ M A⁺.

Rao, Böhle, Parchami-Araghi and Schiele, "Studying How to Efficiently and Effectively Guide Models with Explanations",
ICCV 2023 (energy loss); X-DNN: Hesse, Schaub-Meyer and Roth, "Fast Axiomatic Attribution for Neural Networks", NeurIPS
2021; B-cos: Böhle, Fritz and Schiele, "B-cos Networks: Alignment is All We Need for Interpretability", CVPR 2022.

Differs from the paper: L_T is the run's cross-entropy, not a binary one for each class (`ipg.methods.masked`). Boxes
are drawn around masks, in each random crop anew. Attribution is at the input; the authors' other place, the last
convolution, is left out. They begin from networks trained before, which a run can (`--from`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from ipg.data.batches import Batch
from ipg.methods.base import Setup
from ipg.methods.masked import Masked, normalization, present
from ipg.methods.options import option
from ipg.methods.space import Choice, LogUniform, Range
from ipg.models.bcos import BcosNet, explaining
from ipg.rationale import unwrap
from ipg.seeds import derive_seed

__all__ = ["Epg", "boxes", "energy"]

LEAST = 1e-7
"""Positive attribution below which an image's share inside the box is not formed."""


@dataclass(frozen=True)
class EpgOptions:
    """λ, the share of the training images whose annotation is used, where the object is, and how it is looked for."""

    weight: float = option(1e-3, least=0)
    annotated: float = option(0.01, above=0, most=1)
    region: Literal["box", "mask"] = "box"
    outside: bool = False
    attribution: Literal["auto", "ixg", "bcos"] = "auto"


class Epg(Masked):
    """Task loss plus the share of positive attribution that lies outside of the object."""

    name: ClassVar[str] = "epg"
    summary: ClassVar[str] = "EPG: what speaks for a class shall lie inside the object's box."
    Options: ClassVar[type] = EpgOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(1e-4, 1e-1), "learning_rate": Choice((1e-5, 1e-4))}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options = cast(EpgOptions, self.options)
        model = unwrap(setup.model)
        self.network = model if isinstance(model, BcosNet) and options.attribution != "ixg" else None
        if options.attribution == "bcos" and self.network is None:
            raise ValueError(
                f"attribution=bcos is for B-cos networks, not for {setup.config.model or type(model).__name__}: name "
                f"one with --model bcos_…, or leave the option out"
            )
        self.mean, _ = normalization(setup)
        self.annotated = _draw(cast(Tensor, setup.masks), options.annotated, setup.config.seed)  # (N,)

    def inputs(self, image: Tensor) -> Tensor:
        """The image, in the encoding of a B-cos network where that explains itself."""
        return super().inputs(image if self.network is None else self.network.encode(image))

    def penalty(self, image: Tensor, logits: Tensor, loss: Tensor, batch: Batch) -> Tensor:
        """The sum over annotated images of what lies outside."""
        options = cast(EpgOptions, self.options)
        region = boxes(batch.mask) if options.region == "box" else batch.mask
        counted = self.annotated[batch.row] & present(region)
        region = 1 - region if options.outside else region
        inside = energy(self.attribution(image, logits, batch.label), region)
        return torch.where(counted, 1 - inside, 0).sum()

    def attribution(self, image: Tensor, logits: Tensor, label: Tensor) -> Tensor:
        """A of every image, (B, 1, H, W), with its graph."""
        chosen = logits.gather(1, label[:, None]).sum()
        with explaining(self.network):
            (slope,) = torch.autograd.grad(chosen, image, create_graph=True)
        normal = image - self.mean if self.network is None else image
        return (normal * slope).sum(dim=1, keepdim=True)


def energy(attribution: Tensor, region: Tensor) -> Tensor:
    """The share of positive attribution (B, 1, H, W) that lies inside the region (B, 1, H, W), (B,)."""
    positive = attribution.relu()
    inside, total = ((positive * where).flatten(start_dim=1).sum(dim=1) for where in (region, torch.ones_like(region)))
    return torch.where(total < LEAST, inside, inside / total.clamp_min(LEAST))


def boxes(mask: Tensor) -> Tensor:
    """The smallest upright boxes around what masks (B, 1, H, W) show, 1 inside and 0 outside."""
    shown = (mask > 0.5).to(mask.dtype)
    return _between(shown.amax(dim=3, keepdim=True), 2) * _between(shown.amax(dim=2, keepdim=True), 3)


def _between(flags: Tensor, dim: int) -> Tensor:
    """1 from the first flag to the last along a dimension, 0 elsewhere."""
    before = flags.cummax(dim=dim).values
    return before * flags.flip(dim).cummax(dim=dim).values.flip(dim)


def _draw(masks: Tensor, share: float, seed: int) -> Tensor:
    """Which images count as annotated, (N,): a share of all, drawn by the seed among those with a mask."""
    known = torch.nonzero(present(masks)).flatten().cpu()
    generator = torch.Generator().manual_seed(derive_seed(seed, "annotated"))
    count = max(1, round(share * len(masks)))
    chosen = known[torch.randperm(len(known), generator=generator)[:count]]
    return torch.zeros(len(masks), dtype=torch.bool, device=masks.device).index_fill_(0, chosen.to(masks.device), True)
