"""A network that takes images in [0, 1] and normalises them itself."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ipg.models.normalization import Normalization
from ipg.rationale import find_head

__all__ = ["ImageModel"]


class ImageModel(nn.Module):
    """`backbone((images - mean) / std)`; what a checkpoint of it holds is complete, its normalisation included.

    In its `state_dict` the names of the backbone begin with `backbone.`; `plain_state_dict` takes that off.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, normalization: Normalization, *, name: str, origin: str) -> None:
        super().__init__()
        self.backbone = backbone
        for statistic, values in (("mean", normalization.mean), ("std", normalization.std)):
            self.register_buffer(statistic, torch.tensor(values).view(1, -1, 1, 1))  # (1, C, 1, 1)
        self.name = name
        """What the backbone is called where it comes from."""
        self.origin = origin
        """Where its weights come from, in words."""
        self.frozen = False
        """Whether the backbone stays in eval mode, whatever `train()` says; `freeze` sets it."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W) in [0, 1]."""
        logits: Tensor = self.backbone((images - self.mean) / self.std)
        return logits

    def get_classifier(self) -> nn.Linear:
        """The linear head."""
        return find_head(self.backbone)

    def train(self, mode: bool = True) -> Self:
        """Train or eval mode; only the head of a frozen network follows."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
            self.get_classifier().train(mode)
        return self

    @property
    def normalization(self) -> Normalization:
        """Mean and standard deviation as numbers."""
        return Normalization.of(self.mean, self.std)
