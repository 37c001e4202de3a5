"""Remove an object from a photograph: the hole is filled with the scene's own texture, shifted to where it fits.

Of all shifts of the image by (dy, dx) the one is taken under which the rim of the hole looks most like the image,
found by correlation at a quarter of the resolution (the offsets of He and Sun, "Statistics of Patch Offsets for Image
Completion", ECCV 2012, one at a time). What still differs along the rim is spread over the hole, so that no seam is
seen (the membrane of Pérez et al., "Poisson Image Editing", SIGGRAPH 2003, by a pyramid as in Farbman et al.,
"Convolution Pyramids", SIGGRAPH Asia 2011). What the shifted image does not cover is filled by further shifts, and
what is left after those smoothly.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fill", "grow", "smooth"]

PASSES = 4
"""Shifts that are tried one after the other."""
REDUCED = 4
"""Pixels to a pixel of the search."""
RIM = 4
"""Width in pixels of the rim that a shift must continue."""
_UNCOVERED, _UNSEEN = 0.3, 0.1
"""The cost, in squared difference of colours, of a shift that covers nothing of the hole, or shows none of the rim."""


def fill(image: Tensor, hole: Tensor) -> Tensor:
    """The image with its hole filled.

    Args:
        image: (C, H, W), floats in [0, 1].
        hole: (H, W), bool; what is in it has no influence.
    """
    if bool(hole.all()):
        raise ValueError("the hole is the whole image: there is nothing to fill it with")
    for _ in range(PASSES):
        if not bool(hole.any()):
            break
        image, hole = _pass(image, hole)
    return image


def grow(mask: Tensor, pixels: int) -> Tensor:
    """A mask, (H, W) of bool, and all within so many pixels of it; a negative number shrinks it."""
    if pixels < 0:
        return ~grow(~mask, -pixels)
    side = 2 * pixels + 1
    return F.max_pool2d(mask.float()[None], side, stride=1, padding=pixels)[0] > 0


def smooth(values: Tensor, known: Tensor) -> Tensor:
    """The values where they are known, and elsewhere smooth ones that lead from one to the other.

    Each level of a pyramid has the mean of the known values below it; what is unknown is taken from the level above.

    Args:
        values: (C, H, W).
        known: (H, W), bool.
    """
    weight = known.to(values.dtype)[None, None]  # (1, 1, H, W)
    levels = [(values[None] * weight, weight)]
    while not bool((levels[-1][1] > 0).all()) and max(levels[-1][1].shape) > 1:
        values, weight = levels[-1]
        total = F.avg_pool2d(weight, 2, ceil_mode=True)
        mean = F.avg_pool2d(values * weight, 2, ceil_mode=True) / total.clamp(min=1e-6)
        levels.append((mean, (4 * total).clamp(max=1)))
    filled = levels[-1][0]
    for values, weight in reversed(levels[:-1]):
        above = F.interpolate(filled, size=values.shape[-2:], mode="bilinear", align_corners=False)
        filled = weight * values + (1 - weight) * above
    return filled[0]


def _pass(image: Tensor, hole: Tensor) -> tuple[Tensor, Tensor]:
    """Fill what one shift covers; returns the image and the hole that is left, which is filled smoothly."""
    rough = smooth(image, ~hole)
    shift = _best_shift(rough, hole)
    if shift is None:
        return rough, torch.zeros_like(hole)
    copy, covered = _shifted(image, ~hole, *shift)
    rim = grow(hole, RIM) & ~hole & covered
    seamless = (copy + smooth(image - copy, rim)).clamp(0, 1)
    now = hole & covered
    return torch.where(now, seamless, rough), hole & ~now


def _best_shift(image: Tensor, hole: Tensor) -> tuple[int, int] | None:
    """The shift in pixels under which the rim of the hole differs least; None where all cover too little."""
    small = F.avg_pool2d(image[None], REDUCED, ceil_mode=True)[0].double().numpy()  # (C, h, w)
    void = F.max_pool2d(hole.float()[None], REDUCED, ceil_mode=True)[0] > 0
    rim = (grow(void, max(RIM // 2, 1)) & ~void).double().numpy()
    void_, known = void.double().numpy(), (~void).double().numpy()
    if not rim.any():
        return None
    height, width = known.shape
    square = (small**2).sum(axis=0)
    seen = _correlate(rim, known)
    cost = _correlate(rim * square, known) + _correlate(rim, known * square)
    cost -= 2 * sum(_correlate(rim * channel, known * channel) for channel in small)
    cover, share = _correlate(void_, known) / void_.sum(), seen / rim.sum()
    cost = cost / np.maximum(seen, 1) + _UNCOVERED * (1 - cover) + _UNSEEN * (1 - share)
    cost[(cover < 0.2) | (share < 0.3)] = np.inf
    best = int(cost.argmin())
    if not np.isfinite(cost.flat[best]):
        return None
    down, right = divmod(best, 2 * width)
    return REDUCED * (down - 2 * height * (down >= height)), REDUCED * (right - 2 * width * (right >= width))


def _correlate(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_p one(p) · other(p + s) for every shift s; negative ones stand at the end, (2h, 2w)."""
    size = (2 * one.shape[0], 2 * one.shape[1])
    product = np.conj(np.fft.rfft2(one, size)) * np.fft.rfft2(other, size)
    return np.fft.irfft2(product, size)


def _shifted(image: Tensor, known: Tensor, down: int, right: int) -> tuple[Tensor, Tensor]:
    """The image as seen from (down, right) of every pixel, 0 beyond its edges, and where that is known."""
    height, width = known.shape
    rows = slice(max(0, -down), min(height, height - down))
    columns = slice(max(0, -right), min(width, width - right))
    there = slice(rows.start + down, rows.stop + down), slice(columns.start + right, columns.stop + right)
    copy, covered = torch.zeros_like(image), torch.zeros_like(known)
    copy[:, rows, columns] = image[:, *there]
    covered[rows, columns] = known[*there]
    return copy, covered
