"""What a shape is without its colour: where it is, its outline, how thick it is, and its skeleton.

All functions take and give stacks of masks (N, H, W), true where the shape is, and work on all of them at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["contour", "distances", "shape_channels", "skeleton"]

THRESHOLD = 128
"""From this value of 255 on a pixel belongs to the shape."""
CHUNK = 512
"""Images at a time, few enough to stay in a processor's cache."""


def shape_channels(images: Tensor) -> Tensor:
    """The shapes in uint8 images (N, C, H, W), C of 1 or 2, as uint8 (N, 4, H, W), none of which depends on the colour.

    The channels are mask, contour, distance to the outside and skeleton; the last two as shares of the image's largest
    distance, the skeleton holding the distances of its pixels.

    Raises:
        ValueError: the images have more channels, of which none is known to be the shape's.
    """
    if images.shape[1] > 2:
        raise ValueError(
            f"the shape is what is lit in one of two colours, and these images have {images.shape[1]} channels: take "
            f"another method"
        )
    return torch.cat([_channels(part) for part in torch.split(images, CHUNK)])


def _channels(images: Tensor) -> Tensor:
    mask = images.amax(dim=1) >= THRESHOLD
    depth = distances(mask)
    largest = depth.flatten(1).amax(dim=1).clamp_min(1)[:, None, None]
    share = (255 * depth / largest).round().to(torch.uint8)
    channels = [255 * mask.to(torch.uint8), 255 * contour(mask).to(torch.uint8), share, share * skeleton(mask)]
    return torch.stack(channels, dim=1)


def contour(mask: Tensor) -> Tensor:
    """The pixels of the shape that touch the outside by a side; what lies beyond the image is outside."""
    around = F.pad(mask, (1, 1, 1, 1))
    inner = around[:, :-2, 1:-1] & around[:, 2:, 1:-1] & around[:, 1:-1, :-2] & around[:, 1:-1, 2:]
    return mask & ~inner


def distances(mask: Tensor) -> Tensor:
    """The Euclidean distance from each pixel to the nearest one outside the shape; beyond the image is outside.

    Exact: along columns first, then the least of (x − x')² + (distance along column x')² over all x'.
    """
    inside = F.pad(mask, (1, 1, 1, 1)).float()  # one pixel of outside all around, so that there always is one
    along = torch.minimum(_run(inside), _run(inside.flip(1)).flip(1))  # (N, H, W)
    squared = along.square()
    place = torch.arange(inside.shape[2], device=mask.device, dtype=inside.dtype)
    least = squared.clone()
    for other in range(len(place)):
        torch.minimum(least, (place - other).square() + squared[:, :, other, None], out=least)
    return least.sqrt()[:, 1:-1, 1:-1]


def _run(inside: Tensor) -> Tensor:
    """How many rows above, itself among them, each pixel has been inside without a break."""
    run = torch.zeros_like(inside)
    for row in range(1, inside.shape[1]):
        run[:, row] = (run[:, row - 1] + 1) * inside[:, row]
    return run


def skeleton(mask: Tensor) -> Tensor:
    """The shape thinned to lines of one pixel that keep its connections.

    Zhang and Suen, "A Fast Parallel Algorithm for Thinning Digital Patterns", Communications of the ACM 1984. By its
    rules a square of 2x2 pixels vanishes.
    """
    thin = mask.cpu().numpy().copy()
    left = np.arange(len(thin))  # images that the last round has changed
    while len(left):
        before = thin[left]
        after = before
        for table in REMOVABLE:
            after = after & ~table[_neighbours(after)]
        thin[left] = after
        left = left[(after != before).any(axis=(1, 2))]
    return torch.from_numpy(thin).to(mask.device)


def _neighbours(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which of the eight pixels around each are of the shape: a bit each, clockwise from the north, as uint8."""
    around = np.pad(mask, ((0, 0), (1, 1), (1, 1))).astype(np.uint8)
    height, width = mask.shape[1:]
    code = np.zeros(mask.shape, dtype=np.uint8)
    for bit, (y, x) in enumerate(CLOCKWISE):
        code |= around[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width] << np.uint8(bit)
    return code


CLOCKWISE = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Steps (y, x) to the pixels around one, from the north on."""


def _removable(code: int, kept: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a pixel with such neighbours goes: on a border, no end of a line, no bridge, not of the `kept` kinds."""
    near = [code >> bit & 1 for bit in range(8)]
    turns = sum(near[bit] < near[(bit + 1) % 8] for bit in range(8))
    return 2 <= sum(near) <= 6 and turns == 1 and not any(all(near[bit] for bit in bits) for bits in kept)


REMOVABLE = tuple(
    np.array([_removable(code, kept) for code in range(256)])
    for kept in (((0, 2, 4), (2, 4, 6)), ((0, 2, 6), (0, 4, 6)))
)
"""The two passes of a round: for each of the 256 neighbourhoods whether its middle goes."""
