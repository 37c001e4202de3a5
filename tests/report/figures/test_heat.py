from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.report import figures


def shown(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")).astype(int)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_heat_is_bright_where_it_is_hot_whatever_the_image(image, channels: int) -> None:
    heat = torch.zeros(8, 8)
    heat[:, 4:] = 1
    pixels = shown(figures.heat_uri(image(channels=channels, side=8), heat))
    side = len(pixels)
    cold, hot = pixels[:, : side // 4], pixels[:, -side // 4 :]
    assert np.ptp(cold, axis=2).mean() <= 2  # grey
    assert hot.mean() > cold.mean() + 50
    assert hot[..., 0].mean() > hot[..., 2].mean() + 50  # yellow


def test_large_maps_are_reduced_as_images_are(image) -> None:
    assert shown(figures.heat_uri(image(channels=3, side=300), torch.rand(300, 300))).shape == (112, 112, 3)


def test_a_map_of_another_shape(image) -> None:
    with pytest.raises(ValueError, match=r"shape of the image, \(6, 6\), got \(3, 3\)"):
        figures.heat_uri(image(), torch.zeros(3, 3))


def test_the_legend_rises_in_brightness() -> None:
    colours = [tuple(bytes.fromhex(stop[1:])) for stop in figures.heat_stops()]
    brightness = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in colours]
    assert brightness[1:] == sorted(brightness[1:])
    assert brightness[-1] > 2 * brightness[0]
    assert max(colours[0]) == min(colours[0])  # nothing is grey
