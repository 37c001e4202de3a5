"""Where a model looks, laid over the image in colours whose brightness rises with what they stand for."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ipg.report.figures.pictures import LARGEST_PIXEL_ART, encode

__all__ = ["heat_stops", "heat_uri"]

COLOURS = "inferno"
"""Rises in brightness all the way, so that it reads without colour vision too."""
GREY, SPREAD = 52, 0.4
"""The image beneath: no brighter than a page can bear beside the colours."""
STEPS = 8


def heat_uri(image: Tensor, heat: Tensor) -> str:
    """The image in dim grey with `heat` over it, as a data URI; `heat` (H, W) lies between 0 and 1."""
    if heat.shape != image.shape[1:]:
        raise ValueError(f"heat must have the shape of the image, {tuple(image.shape[1:])}, got {tuple(heat.shape)}")
    grey = _grey(image)
    picture = Image.fromarray(_blend(grey, heat.detach().cpu().double().clamp(0, 1).numpy()))
    if max(picture.size) <= LARGEST_PIXEL_ART:  # colours run smoothly also over pixels that are shown one by one
        scale = -(-LARGEST_PIXEL_ART // max(picture.size)) + 1
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.BICUBIC)
    return encode(picture)


def heat_stops() -> list[str]:
    """The colours of the legend, from none to most, as CSS."""
    heat = np.linspace(0, 1, STEPS)[None]
    return ["#" + bytes(colour).hex() for colour in _blend(np.full((1, STEPS), 128.0), heat)[0]]


def _grey(image: Tensor) -> NDArray[np.float64]:
    """The brightness of an image of any number of channels, (H, W) from 0 to 255."""
    channels = image.detach().cpu().double()
    if len(channels) >= 3:
        return np.asarray((torch.tensor([0.299, 0.587, 0.114]).double()[:, None, None] * channels[:3]).sum(0))
    return np.asarray(channels.amax(0))


def _blend(grey: NDArray[np.float64], heat: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Dim grey (H, W), and over it the colours of `heat`, the more opaque the hotter: (H, W, 3)."""
    base = (GREY + SPREAD * grey)[..., None]
    opaque = 0.92 * np.sqrt(heat)[..., None]
    colour = 255 * colormaps[COLOURS](0.15 + 0.85 * heat)[..., :3]
    mixed: NDArray[np.uint8] = np.rint((1 - opaque) * base + opaque * colour).astype(np.uint8)
    return mixed
