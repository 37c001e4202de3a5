"""Networks by name: the convolutional network of the ColoredMNIST benchmark and a small sister for laptops.

`mnist_cnn` is DomainBed's MNIST_CNN (Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization", ICLR 2021):
four 3×3 convolutions, each followed by ReLU and then GroupNorm, global average pooling, a linear head.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MODELS", "ConvNet", "FirstConv2d", "build_small"]


class FirstConv2d(nn.Conv2d):
    """A first convolution whose few input channels are filled up with zeros where tensor cores want eight.

    The sums are the same; on a GPU in half precision they are done in a fraction of the time.
    """

    def forward(self, images: Tensor) -> Tensor:
        """The convolution of `images` (B, C, H, W)."""
        if not (images.is_cuda and torch.is_autocast_enabled("cuda")):
            return super().forward(images)
        fill = (0, 0, 0, 0, 0, -self.in_channels % 8)
        images, weight = F.pad(images, fill), F.pad(self.weight, fill)
        return F.conv2d(images, weight, self.bias, self.stride, self.padding)


class ConvNet(nn.Module):
    """Convolution, ReLU, GroupNorm, as often as there are widths; then the mean over positions and a linear head."""

    name: str | None = None
    """What it is called in `MODELS`."""

    def __init__(self, channels: int, classes: int, *, widths: Sequence[int], strides: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for (before, after), stride in zip(pairwise([channels, *widths]), strides, strict=True):
            kind = nn.Conv2d if layers else FirstConv2d
            layers += [kind(before, after, 3, stride=stride, padding=1), nn.ReLU(), nn.GroupNorm(8, after)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.head(self.body(images).mean(dim=(2, 3)))
        return logits


MODELS: dict[str, dict[str, Sequence[int]]] = {
    "mnist_cnn": {"widths": (64, 128, 128, 128), "strides": (1, 2, 1, 1)},
    "small_cnn": {"widths": (16, 32, 32, 32), "strides": (1, 2, 1, 2)},
}
"""Widths and strides of the networks that can be asked for by name."""


def build_small(name: str, *, channels: int, classes: int) -> ConvNet:
    """A freshly initialised network of `MODELS`; its weights come from torch's default generator."""
    model = ConvNet(channels, classes, **MODELS[name])
    model.name = name
    return model
