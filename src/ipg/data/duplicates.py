"""Images that are there more than once: files of the same bytes, and images that look the same."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence

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
_ROWS, _COLUMNS = 1 << 9, 1 << 12
"""How many images are compared at once, and with how many: what a processor's cache holds."""


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

    Thumbnails of 8 x 8 find them, each compared with those of about its brightness, and thumbnails of 16 x 16 confirm;
    plain images are passed over.
    """
    small = torch.cat([F.avg_pool2d(_thumbnails(part), 2).flatten(1) for part in torch.split(images, 256)])  # (N, 64)
    set_of: dict[int, int] = {}
    for one, other in sorted(_alike(images, small)):
        set_of[other] = set_of.setdefault(one, one)
    sets: dict[int, list[int]] = {}
    for row in sorted(set_of):
        sets.setdefault(set_of[row], []).append(row)
    return [sets[name] for name in sorted(sets)]


def _thumbnails(images: Tensor) -> Tensor:
    """Brightness at 16 x 16, (N, 1, 16, 16)."""
    return F.adaptive_avg_pool2d(images.float().mean(dim=1, keepdim=True), 16)


def _alike(images: Tensor, small: Tensor) -> Iterator[tuple[int, int]]:
    """Pairs of rows that look the same, the earlier first.

    Of two that do, mean and contrast differ by less than a share `_CLOSE` of the contrast, so that in the order of
    brightness each has to be compared with its neighbours alone. Thumbnails of 4 x 4 leave few of those.
    """
    contrast = small.std(dim=1)
    rows = torch.nonzero(contrast > _FLAT).flatten()
    brightness, order = torch.sort(small[rows].mean(dim=1))
    rows = rows[order]
    reach = _CLOSE / (1 - 1.01 * _CLOSE) * contrast[rows]  # the contrast of the other may be that much more
    left, right = _factors(F.avg_pool2d(small[rows].view(-1, 1, 8, 8), 2).flatten(1) - 128, 4.05 * reach)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        end = int(torch.searchsorted(brightness, (brightness[part] + reach[part]).max(), right=True))
        for place in range(start, end, _COLUMNS):
            near = left[part] @ right[place : min(place + _COLUMNS, end)].T > 0
            mine, theirs = torch.nonzero(near).T
            later = theirs + place > mine + start
            both = rows[torch.stack([mine[later] + start, theirs[later] + place])].sort(dim=0).values
            for first, second in torch.split(both, _ROWS, dim=1):
                likely = torch.linalg.vector_norm(small[first] - small[second], dim=1) / 8 < _CLOSE * contrast[first]
                first, second = first[likely], second[likely]
                apart = (_thumbnails(images[first]) - _thumbnails(images[second])).flatten(1).norm(dim=1) / 16
                same = apart < _CLOSE * contrast[first]
                yield from zip(first[same].tolist(), second[same].tolist(), strict=True)


def _factors(points: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrices whose product is positive where a point (row) has another (column) `within` its distance.

    |a - b|² < t² is ab + (t² - |a|²) / 2 - |b|² / 2 > 0, one product in place of a distance.
    """
    squares, ones = points.square().sum(dim=1, keepdim=True), torch.ones_like(points[:, :1])
    return (
        torch.cat([points, (within.square()[:, None] - squares) / 2, -ones], dim=1),
        torch.cat([points, ones, squares / 2], dim=1),
    )


def _shared(keys: Iterable[Hashable]) -> list[list[int]]:
    """Positions of equal keys, in sets of two or more."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return [rows for rows in places.values() if len(rows) > 1]
