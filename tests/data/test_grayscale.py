from dataclasses import replace

import pytest
import torch

from ipg.data import colored_mnist
from ipg.data.grayscale import gray
from ipg.data.mnist import Digits


def test_both_colors_of_an_image_become_one_input(digits: Digits) -> None:
    small = Digits(digits.images[:60], digits.labels[:60], train=60)
    table = colored_mnist.load(small)
    recolored = replace(table, images=table.images.flip(1), attribute=1 - table.attribute)
    assert table.images.ne(recolored.images).any()
    assert torch.equal(gray(table.images), gray(recolored.images))
    assert torch.equal(gray(table.images), small.images[:, None])


def test_sums_do_not_wrap_around() -> None:
    images = torch.tensor([200, 100], dtype=torch.uint8).view(1, 2, 1, 1)
    assert gray(images).tolist() == [[[[255]]]]


def test_other_numbers_of_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="these images have 3 channels: take another method than oracle"):
        gray(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
