"""DAIR: the losses of an image and of its recoloured copy are made alike.

Huang et al., "Robustness through Data Augmentation Loss Consistency", TMLR 2022, the regulariser DAIR-SQ. With
x̃ a copy of x in another colour and ℓ the cross-entropy of one image,

    L = 1/B Σ_i { ½ [ℓ(x_i) + ℓ(x̃_i)] + λ (√ℓ(x_i) − √ℓ(x̃_i))² }

    augment=random   every channel of x̃ is U(0, 1) · grey, drawn for each image ("RA", default)
    augment=swap     x̃ is x in the opposite colour: its two channels swapped ("AA")

Differs from the paper: its copies are made before training and hold three channels; here they are drawn anew at every
step, of two or three channels. Grey is the largest channel, which is the drawing itself where one channel is lit. As in
the authors' code 1e-7 is added under the roots and no class is weighted; the run's own optimizer stays throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.collectives import find_peers
from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods.base import Method, Need, Setup
from ipg.methods.options import option
from ipg.methods.space import LogUniform, Range

__all__ = ["Dair", "recolored_copy"]

Augment = Literal["random", "swap"]


@dataclass(frozen=True)
class DairOptions:
    """How copies are coloured, and how much the difference of their losses counts."""

    augment: Augment = "random"
    weight: float = option(1.0, least=0)


def recolored_copy(images: Tensor, augment: Augment) -> Tensor:
    """A copy of `images` (B, C, H, W) in other colours."""
    _check_channels(images.shape[1], augment)
    if augment == "swap":
        return images.flip(1)
    strength = torch.rand(*images.shape[:2], 1, 1, dtype=images.dtype, device=images.device)
    return strength * images.amax(dim=1, keepdim=True)


def _check_channels(channels: int, augment: Augment) -> None:
    """A ValueError where images of so many channels cannot be recoloured."""
    fit, instead = ((2,), "take augment=random or another method") if augment == "swap" else ((2, 3), "take another")
    if channels not in fit:
        raise ValueError(
            f"dair with augment={augment} recolours images of {' or '.join(map(str, fit))} channels, and these have "
            f"{channels}: {instead}"
        )


class Dair(Method):
    """Training on images and recoloured copies whose losses agree."""

    name: ClassVar[str] = "dair"
    summary: ClassVar[str] = "DAIR: images and recoloured copies of them, their losses drawn together."
    weighs_classes: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset({"shortcut rule"})
    cost: ClassVar[str] = "2"
    Options: ClassVar[type] = DairOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(10.0, 100.0)}

    @classmethod
    def remark(cls, config: RunConfig, table: ImageTable) -> str | None:
        """That colours are all it changes, where nothing says that they are the shortcut."""
        del config
        if table.name.startswith("colored"):
            return None
        return f"{cls.name} changes the colours of images alone, which helps where they are the shortcut"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.peers = find_peers(setup.model, "auto")
        if setup.table is not None:
            _check_channels(setup.table.images.shape[1], cast(DairOptions, self.options).augment)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on both losses and their difference, images and copies in one pass."""
        setup, options = self.setup, cast(DairOptions, self.options)
        setup.optimizer.zero_grad()
        copies = recolored_copy(batch.image, options.augment)
        logits = setup.logits(torch.cat([batch.image, copies]))  # (2B, K)
        plain, other = F.cross_entropy(logits, batch.label.repeat(2), reduction="none").chunk(2)  # (B,) each
        difference = (torch.sqrt(plain + 1e-7) - torch.sqrt(other + 1e-7)).square()
        count = self.peers.sum(plain.new_full((), len(plain)))  # of all processes
        loss = (0.5 * (plain + other) + options.weight * difference).sum() * self.peers.size / count
        loss.backward()  # type: ignore[no-untyped-call]
        setup.optimizer.step()
        return {"task_loss": loss.detach(), "difference": difference.detach().mean()}
