"""Random crops and flips on the device: a view is drawn for each image, or one for both members of a pair.

A view is a box inside the image, of a random area and shape, resized to the whole, perhaps mirrored: torchvision's
RandomResizedCrop and RandomHorizontalFlip, for a whole batch at once and without asking the device anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Augmentation", "look"]

RATIO = 4 / 3
"""Boxes are at most this much wider than high, or higher than wide."""


@dataclass(frozen=True)
class Augmentation:
    """Which views are drawn.

    Attributes:
        crop: the smallest share of an image's area that a view keeps; 1 is the whole image.
        flip: whether every second view is mirrored.
    """

    crop: float = 1.0
    flip: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop={self.crop!r} is out of range: expected a share of the image, above 0 and up to 1")

    def __bool__(self) -> bool:
        """Whether there is anything to draw."""
        return self.crop < 1 or self.flip

    def draw(self, count: int, device: torch.device) -> Tensor:
        """Views of square images, (count, 4): centre x and y and half extents x and y, in [-1, 1] coordinates.

        A mirrored view has a negative half extent x. Random numbers come from the device's default generator.
        """
        area, shape, x, y, mirror = torch.rand(5, count, device=device)
        side = torch.sqrt(self.crop + (1 - self.crop) * area)
        bend = torch.exp((shape - 0.5) * math.log(RATIO)) if self.crop < 1 else torch.ones_like(side)
        width, height = (side * bend).clamp_max(1), (side / bend).clamp_max(1)
        across = torch.where(mirror < 0.5, -width, width) if self.flip else width
        return torch.stack([(2 * x - 1) * (1 - width), (2 * y - 1) * (1 - height), across, height], dim=1)


def look(images: Tensor, views: Tensor) -> Tensor:
    """Each of the `images` (B, C, H, W) through its view (B, 4), resized to the size it had, bilinearly."""
    x, y, across, height = views.unbind(dim=1)
    none = torch.zeros_like(x)
    rows = torch.stack([torch.stack([across, none, x], dim=1), torch.stack([none, height, y], dim=1)], dim=1)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)  # (B, H, W, 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
