"""How far apart the members of a pair are, as the eye sees it: where they should agree and where they may differ."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["look_alike", "perceptual"]

WINDOW = 8
"""Pixels of the windows that are compared."""
_C1, _C2 = 0.01**2, 0.03**2
_ALIKE = 0.05
"""Difference of two thumbnails, as a share of their contrast, up to which they look the same."""


def perceptual(first: Tensor, second: Tensor, mask: Tensor | None = None) -> float:
    """1 - SSIM of two images: 0 where they are the same, near 1 where they have nothing in common.

    Structural similarity (Wang et al., "Image Quality Assessment", IEEE TIP 2004) over square windows, each channel by
    itself, so that colours count. With a mask, only windows that lie mostly inside it count, and only their part
    inside.

    Args:
        first: (C, H, W), uint8.
        second: (C, H, W), uint8.
        mask: (H, W), bool.

    Returns:
        NaN where no window lies in the mask.
    """
    side = min(WINDOW, *first.shape[-2:])
    x, y = first[None].float() / 255, second[None].float() / 255
    inside = torch.ones_like(x[:, :1]) if mask is None else mask.float()[None, None]
    share = F.avg_pool2d(inside, side, stride=max(side // 2, 1))  # (1, 1, h, w), of each window

    def mean(image: Tensor) -> Tensor:
        """Over what of each window is inside, (1, C, h, w)."""
        return F.avg_pool2d(image * inside, side, stride=max(side // 2, 1)) / share.clamp(min=1e-6)

    mx, my = mean(x), mean(y)
    vx, vy = (mean(x * x) - mx * mx).clamp(min=0), (mean(y * y) - my * my).clamp(min=0)
    covariance = mean(x * y) - mx * my
    similarity = (2 * mx * my + _C1) * (2 * covariance + _C2) / ((mx * mx + my * my + _C1) * (vx + vy + _C2))
    by_window = similarity.mean(dim=1)[share[:, 0] > 0.5]
    return float(1 - by_window.mean()) if by_window.numel() else float("nan")


def look_alike(first: Tensor, second: Tensor) -> bool:
    """Whether two images (C, H, W) of uint8 are the same at a glance, colours included."""
    small = F.adaptive_avg_pool2d(torch.stack([first, second]).float(), 16)
    contrast = float(small.std())
    apart = float((small[0] - small[1]).square().mean().sqrt())
    return apart <= max(_ALIKE * contrast, 1.0)
