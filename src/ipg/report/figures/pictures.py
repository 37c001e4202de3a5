"""Images as data URIs, and pairs of them in a grid."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ipg.report.figures.drawing import MUTED, TRACK, fit, root, style, themed

__all__ = ["LARGEST_PIXEL_ART", "PairGrid", "Tile", "draw_pair_grid", "encode", "image_uri", "pair_grid_data"]

FIRST_CHANNEL, SECOND_CHANNEL = (224, 62, 38), (0, 152, 117)
"""Red and green of two-channel images: a yellowish red and a bluish green, told apart also without red-green vision."""
LARGEST_PIXEL_ART = 48
"""Images up to this side are shown pixel by pixel; larger ones are smoothed, and stored with losses."""
LARGEST_STORED = 112
"""Side to which large images are reduced."""


@dataclass(frozen=True)
class Tile:
    """One pair, ready to be shown."""

    first: str
    """Data URI."""
    second: str
    label: str
    pixelated: bool
    """Whether it is small enough to be shown pixel by pixel."""


@dataclass(frozen=True)
class PairGrid:
    """Pairs in the order in which they are shown."""

    tiles: tuple[Tile, ...]


def pair_grid_data(pairs: Sequence[tuple[Tensor, Tensor, str]]) -> PairGrid:
    """Images as data URIs; pairs are (first, second, label name), images (C, H, W) of uint8."""
    return PairGrid(
        tuple(
            Tile(image_uri(first), image_uri(second), label, max(first.shape[-2:]) <= LARGEST_PIXEL_ART)
            for first, second, label in pairs
        )
    )


def draw_pair_grid(data: PairGrid, *, columns: int = 10, size: int = 56) -> str:
    """Every pair as a column of two images, first over second, its label beneath. Empty without pairs."""
    if not data.tiles:
        return ""
    columns = min(columns, len(data.tiles))
    across, down = size + 12, 2 * size + 38
    width, height = columns * across - 12, -(-len(data.tiles) // columns) * down - 8
    labels = ", ".join(dict.fromkeys(tile.label for tile in data.tiles))
    drawn = root(width, height, f"{len(data.tiles)} invariance pairs, first over second: {labels}.")
    with style():
        for i, tile in enumerate(data.tiles):
            x, y = i % columns * across, i // columns * down
            for offset, uri in ((0, tile.first), (size + 4, tile.second)):
                box = {"x": str(x), "y": str(y + offset), "width": str(size), "height": str(size)}
                ET.SubElement(drawn, "rect", {**box, "style": "fill: none; stroke: " + themed(TRACK)})
                image = ET.SubElement(drawn, "image", {**box, "href": uri})
                if tile.pixelated:
                    image.set("style", "image-rendering: pixelated")
            text = ET.SubElement(drawn, "text", {"x": f"{x + size / 2:g}", "y": str(y + 2 * size + 20)})
            text.set("style", f"font-size: 11px; text-anchor: middle; fill: {themed(MUTED)}")
            text.text = fit(tile.label, size + 10, 11)
    return ET.tostring(drawn, encoding="unicode")


def image_uri(image: Tensor) -> str:
    """An image as a data URI.

    One channel is grey, three are red, green, blue, of more the first three count. Two channels are colours on
    the page itself: the first red, the second green, the more opaque the larger the value.
    """
    if image.dtype != torch.uint8 or image.ndim != 3 or 0 in image.shape:
        raise ValueError(f"an image must be uint8 of shape (C, H, W), got {image.dtype} {tuple(image.shape)}")
    array = image.detach().permute(1, 2, 0).cpu().numpy()  # (H, W, C)
    if array.shape[2] == 1:
        picture = Image.fromarray(np.ascontiguousarray(array[:, :, 0]))
    elif array.shape[2] == 2:
        share = array / np.maximum(array.sum(2, keepdims=True, dtype=np.int64), 1)  # (H, W, 2)
        colour = share @ np.array([FIRST_CHANNEL, SECOND_CHANNEL])  # (H, W, 3)
        opaque = 255 * (array.max(2, keepdims=True) / 255) ** 0.7  # faint cloth stays visible on light and dark
        picture = Image.fromarray(np.rint(np.concatenate([colour, opaque], axis=2)).astype(np.uint8))
    else:
        picture = Image.fromarray(np.ascontiguousarray(array[:, :, :3]))
    return encode(picture)


def encode(picture: Image.Image) -> str:
    """A picture as a data URI: small ones exactly, large ones reduced and with losses."""
    buffer = io.BytesIO()
    if max(picture.size) <= LARGEST_PIXEL_ART:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.thumbnail((LARGEST_STORED, LARGEST_STORED))
        picture.save(buffer, "WEBP", quality=85, method=6)
    kind = "png" if max(picture.size) <= LARGEST_PIXEL_ART else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
