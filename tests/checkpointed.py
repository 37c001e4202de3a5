"""Layers that run again in the backward pass, where they must find the mode that they ran in before."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["Checkpointed", "Noise"]


class Noise(nn.Module):
    """Noise in train mode that leaves no trace in the graph: run again in another mode, values alone would differ."""

    def forward(self, x: Tensor) -> Tensor:
        """Add noise, or do nothing."""
        return x + torch.randn_like(x) if self.training else x


class Checkpointed(nn.Module):
    """A network of six inputs with `layer` among those that run again in the backward pass, or do not."""

    def __init__(self, layer: nn.Module, *, checkpointed: bool, classes: int = 2) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.stem = nn.Linear(6, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), layer, nn.ReLU(), nn.Linear(8, 5))
        self.fc = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.stem(x)
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        logits: Tensor = self.fc(x)
        return logits
