from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.report import figures
from ipg.report.figures.pictures import FIRST_CHANNEL, SECOND_CHANNEL, PairGrid


def picture(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    assert head == f"data:image/{image.format.lower()};base64"
    return image


def test_one_channel_is_grey(image) -> None:
    shown = picture(figures.image_uri(image(channels=1)))
    assert shown.mode == "L"
    np.testing.assert_array_equal(np.asarray(shown), image(channels=1)[0].numpy())


@pytest.mark.parametrize("channels", [3, 4])
def test_three_channels_are_colours(image, channels: int) -> None:
    shown = picture(figures.image_uri(image(channels=channels)))
    assert shown.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(shown), image(channels=channels)[:3].permute(1, 2, 0).numpy())


def test_two_channels_are_red_and_green_on_nothing() -> None:
    pixels = torch.tensor([[[255, 0, 0, 100]], [[0, 255, 0, 100]]], dtype=torch.uint8)  # (2, 1, 4)
    shown = np.asarray(picture(figures.image_uri(pixels)))  # (1, 4, 4)
    assert shown[0, 0].tolist() == [*FIRST_CHANNEL, 255]
    assert shown[0, 1].tolist() == [*SECOND_CHANNEL, 255]
    assert shown[0, 2, 3] == 0
    half = [(a + b) / 2 for a, b in zip(FIRST_CHANNEL, SECOND_CHANNEL, strict=True)]
    assert np.abs(shown[0, 3, :3] - np.array(half)).max() <= 0.5
    assert 100 < shown[0, 3, 3] < 255


def test_large_images_are_reduced(image) -> None:
    assert picture(figures.image_uri(image(channels=3, side=400))).size == (112, 112)
    assert picture(figures.image_uri(image(channels=3, side=400))).format == "WEBP"
    assert picture(figures.image_uri(image(channels=3, side=64))).size == (64, 64)
    assert picture(figures.image_uri(image(channels=2, side=100))).mode == "RGBA"


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 4, 4),
        torch.zeros(4, 4, dtype=torch.uint8),
        torch.zeros(3, 0, 4, dtype=torch.uint8),
    ],
)
def test_what_is_no_image(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"uint8 of shape \(C, H, W\)"):
        figures.image_uri(wrong)


def test_pair_grid(image) -> None:
    pairs = [(image(seed=i), image(seed=i).flip(0), f"class {i}") for i in range(5)]
    data = figures.pair_grid_data(pairs)
    assert [tile.label for tile in data.tiles] == [f"class {i}" for i in range(5)]
    assert all(tile.pixelated for tile in data.tiles)
    assert data.tiles[3].first == figures.image_uri(pairs[3][0])
    assert data.tiles[3].second == figures.image_uri(pairs[3][1])
    root = ET.fromstring(figures.draw_pair_grid(data, columns=3, size=50))
    assert root.attrib["viewBox"] == "0 0 174 268"  # 3 columns of 50 and 2 gaps of 12; 2 rows of 138 less 8
    images = list(root.iter("{http://www.w3.org/2000/svg}image"))
    assert [element.attrib["href"] for element in images[6:8]] == [data.tiles[3].first, data.tiles[3].second]
    assert [images[6].attrib[key] for key in "xy"] == ["0", "138"]
    assert [images[7].attrib[key] for key in "xy"] == ["0", "192"]  # second under first
    assert figures.draw_pair_grid(PairGrid(())) == ""
