"""Shapes without colour, against the same quantities found pixel by pixel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ipg.data.coloring import colorize
from ipg.data.shape import contour, distances, shape_channels, skeleton

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def blobs(count: int = 6, size: int = 14) -> Tensor:
    """Shapes of some thickness: rough noise, smoothed; one of them fills the image, one is empty."""
    torch.manual_seed(3)
    noise = torch.nn.functional.avg_pool2d(torch.rand(count, 1, size + 4, size + 4), 5, stride=1)[:, 0]
    mask = noise > 0.5
    mask[0], mask[1] = True, False
    return mask


def pixels(mask: Tensor) -> set[tuple[int, int]]:
    return {(y, x) for y, x in mask.nonzero().tolist()}


def test_distances_to_the_outside() -> None:
    """The nearest of all pixels that are outside, the frame around the image among them."""
    mask = blobs()
    found = distances(mask)
    assert found.max() > 5
    for picture, depth in zip(mask, found, strict=True):
        inside = pixels(picture)
        everywhere = [(y, x) for y in range(-1, 15) for x in range(-1, 15)]
        outside = [place for place in everywhere if place not in inside]
        for y, x in everywhere:
            if 0 <= min(y, x) <= max(y, x) < 14:
                nearest = min(math.dist((y, x), other) for other in outside)
                assert depth[y, x].item() == pytest.approx(nearest, abs=1e-5)


def test_contours_touch_the_outside() -> None:
    for picture, line in zip(blobs(), contour(blobs()), strict=True):
        inside = pixels(picture)
        near = {
            (y, x) for y, x in inside if not {(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)} <= inside
        }  # fmt: skip
        assert pixels(line) == near


def thinned(inside: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Zhang and Suen's rules as they print them: P2 is the north neighbour, P9 the north-west one."""
    while True:
        start = inside
        for one, two in ((("P2", "P4", "P6"), ("P4", "P6", "P8")), (("P2", "P4", "P8"), ("P2", "P6", "P8"))):
            gone = set()
            for y, x in inside:
                ring = [(y - 1, x), (y - 1, x + 1), (y, x + 1), (y + 1, x + 1), (y + 1, x), (y + 1, x - 1), (y, x - 1),
                        (y - 1, x - 1)]  # fmt: skip
                p = {f"P{number}": int(place in inside) for number, place in enumerate(ring, start=2)}
                order = [p[f"P{number}"] for number in (2, 3, 4, 5, 6, 7, 8, 9, 2)]
                turns = "".join(map(str, order)).count("01")
                if (
                    2 <= sum(p.values()) <= 6
                    and turns == 1
                    and math.prod(p[name] for name in one) == 0
                    and math.prod(p[name] for name in two) == 0
                ):
                    gone.add((y, x))
            inside = inside - gone
        if inside == start:
            return inside


def pieces(inside: set[tuple[int, int]]) -> int:
    """How many parts there are, corners connecting; a square of 2x2 pixels is none."""
    left, count = set(inside), 0
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            edge = {(y + dy, x + dx) for y, x in edge for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= edge
        (top, side) = min(part)
        count += part != {(top, side), (top, side + 1), (top + 1, side), (top + 1, side + 1)}
    return count


def test_skeletons() -> None:
    mask = blobs(12)
    thin = skeleton(mask)
    for picture, line in zip(mask, thin, strict=True):
        assert pixels(line) == thinned(pixels(picture))
        assert pixels(line) <= pixels(picture)
        assert pieces(pixels(line)) == pieces(pixels(picture))
    assert thin[2:].sum() < mask[2:].sum() / 2


def test_a_small_square_vanishes() -> None:
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[0, 1:3, 1:3] = True
    assert not skeleton(mask).any()


def test_a_bar_by_hand() -> None:
    """Three rows of seven: distances 1, 2, 1 from the long sides; of the skeleton a line in the middle is left."""
    grey = torch.zeros(1, 9, 9, dtype=torch.uint8)
    grey[0, 3:6, 1:8] = 200
    grey[0, 0, 0] = 127  # below a half
    mask, line, depth, axis = shape_channels(grey[:, None])[0]
    assert mask.count_nonzero() == 21
    assert line.count_nonzero() == 21 - 5
    assert depth[3:6, 3].tolist() == [128, 255, 128]
    assert axis[4].tolist() == [0, 0, 255, 255, 255, 255, 0, 0, 0]
    assert axis.count_nonzero() == 4


def test_both_colours_are_one_shape() -> None:
    grey = (255 * torch.rand(20, 14, 14)).to(torch.uint8)
    red, green = (colorize(grey, torch.full((20,), color)) for color in (0, 1))
    found = shape_channels(red)
    assert found.shape == (20, 4, 14, 14)
    assert found.dtype == torch.uint8
    assert torch.equal(found, shape_channels(green))
    assert torch.equal(found, shape_channels(grey[:, None]))


def test_photographs_have_no_such_shape() -> None:
    with pytest.raises(ValueError, match="lit in one of two colours, and these images have 3 channels: take another"):
        shape_channels(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
