"""What an oracle sees: coloured images without their colour."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ipg.data.table import ImageTable

__all__ = ["gray", "grayscale"]


def gray(images: Tensor) -> Tensor:
    """Sum the two channels of uint8 images (N, 2, H, W) into one, (N, 1, H, W): both colours become one input."""
    if images.shape[1] != 2:
        raise ValueError(
            f"an oracle sees the two colour channels of images summed, and these images have {images.shape[1]} "
            f"channels: take another method than oracle"
        )
    return images.sum(dim=1, keepdim=True, dtype=torch.int16).clamp_(max=255).to(torch.uint8)


def grayscale(table: ImageTable) -> ImageTable:
    """The table with gray images; every other column stays, so that an oracle's groups are those of the others."""
    return replace(table, images=gray(table.images))
