"""Images that are there more than once: files of the same bytes, and images that look the same."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.data.errors import DataError
from ipg.data.sources import Source

__all__ = ["identical", "similar"]

_CLOSE = 0.08
"""Difference of two thumbnails, as a share of their contrast, up to which they count as the same image."""
_FLAT = 8.0
"""Contrast, a standard deviation of brightness of 255, below which an image is too plain to be told from others."""
_BLOCK = 1 << 26
"""Distances that are held at once."""


def identical(source: Source, names: Sequence[str]) -> list[list[int]]:
    """Rows whose files hold the same bytes, in sets of two or more."""
    found = []
    for rows in _shared(source.stamps(names)):
        found += [[rows[place] for place in places] for places in _shared(_digest(source, names[row]) for row in rows)]
    return found


def _digest(source: Source, name: str) -> Hashable:
    try:
        return hashlib.sha256(source.read(name)).digest()
    except DataError:
        return name  # what cannot be read is like nothing else


def similar(images: Tensor) -> list[list[int]]:
    """Rows of `images` (N, 3, H, W) that look the same at a glance, in sets of two or more: copies saved anew.

    Thumbnails of 8 x 8 find them, each compared with each, and thumbnails of 16 x 16 confirm; plain images are passed
    over.
    """
    pooled = [F.adaptive_avg_pool2d(part.float().mean(dim=1, keepdim=True), 16) for part in torch.split(images, 256)]
    large = torch.cat(pooled)  # (N, 1, 16, 16)
    small = F.avg_pool2d(large, 2).flatten(1)  # (N, 64)
    large = large.flatten(1)  # (N, 256)
    contrast = small.std(dim=1)
    rows = torch.nonzero(contrast > _FLAT).flatten()
    set_of: dict[int, int] = {}
    for part in torch.split(rows, max(_BLOCK // len(rows), 1)) if len(rows) else ():
        later = rows[int((rows < part[0]).sum()) :]
        near = torch.cdist(small[part], small[later]) < 8 * _CLOSE * contrast[part, None]  # 8 is the root of 64
        first, second = (found[number] for found, number in zip((part, later), torch.nonzero(near).T, strict=True))
        apart = torch.linalg.vector_norm(large[first] - large[second], dim=1) / 16
        same = (first < second) & (apart < _CLOSE * contrast[first])
        for one, other in zip(first[same].tolist(), second[same].tolist(), strict=True):
            set_of[other] = set_of.setdefault(one, one)
    return [sorted(key for key in set_of if set_of[key] == name) for name in sorted(set(set_of.values()))]


def _shared(keys: Iterable[Hashable]) -> list[list[int]]:
    """Positions of equal keys, in sets of two or more."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return [rows for rows in places.values() if len(rows) > 1]
