"""What the coloured data sets share: grey images of which the colour, one of two channels, is the shortcut.

And what an oracle sees: the same without their colour.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["COLORS", "chance", "colorize", "gray", "halve"]

COLORS = ("red", "green")
"""Names of the attribute: the image stands in channel 0 or in channel 1."""


def colorize(grey: Tensor, color: Tensor) -> Tensor:
    """Put every grey image into the channel that its colour names; the other channel is black.

    Args:
        grey: (N, H, W), uint8.
        color: (N,), 0 or 1.

    Returns:
        (N, 2, H, W), uint8.
    """
    images = grey.new_zeros(len(grey), 2, *grey.shape[1:])
    images[torch.arange(len(grey)), color] = grey
    return images


def gray(images: Tensor) -> Tensor:
    """Sum the two channels of uint8 images (N, 2, H, W) into one, (N, 1, H, W): both colours become one input."""
    if images.shape[1] != 2:
        raise ValueError(
            f"an oracle sees the two colour channels of images summed, and these images have {images.shape[1]} "
            f"channels: take another method than oracle"
        )
    return images.sum(dim=1, keepdim=True, dtype=torch.int16).clamp_(max=255).to(torch.uint8)


def chance(probability: float | Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` independent bits, (count,) of bool, each true with `probability` (one, or one a bit).

    However small the probability, as many numbers are drawn: what a generator gives afterwards does not depend on it.
    """
    return torch.rand(count, generator=generator) < probability


def halve(grey: Tensor) -> Tensor:
    """Means of 2x2 blocks, halves rounded up: (N, H, W) becomes (N, H/2, W/2), uint8."""
    n, height, width = grey.shape
    sums = grey.reshape(n, height // 2, 2, width // 2, 2).sum(dim=(2, 4), dtype=torch.int16)
    return ((sums + 2) // 4).to(torch.uint8)
