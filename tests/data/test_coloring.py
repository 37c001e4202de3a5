from dataclasses import replace

import pytest
import torch

from ipg.data import colored_mnist
from ipg.data.coloring import chance, colorize, gray, halve
from ipg.data.mnist import Digits


def test_an_image_stands_in_the_channel_of_its_color() -> None:
    grey = torch.tensor([[[1, 2]], [[3, 4]]], dtype=torch.uint8)
    images = colorize(grey, torch.tensor([1, 0]))
    assert images.dtype == torch.uint8
    assert images.tolist() == [[[[0, 0]], [[1, 2]]], [[[3, 4]], [[0, 0]]]]


def test_halving_takes_means_and_rounds_halves_up() -> None:
    grey = torch.randint(0, 256, (50, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    grey[0, :2, :4] = torch.tensor([[0, 1, 255, 255], [0, 1, 255, 255]])
    means = torch.nn.functional.avg_pool2d(grey.double(), 2)
    assert torch.equal(halve(grey).double(), torch.floor(means + 0.5))
    assert halve(grey)[0, 0, :2].tolist() == [1, 255]


def test_chance_has_the_rate_of_every_bit() -> None:
    rates = torch.tensor([0.0, 0.3, 1.0]).repeat(10_000)
    bits = chance(rates, 30_000, torch.Generator().manual_seed(0)).view(-1, 3).float().mean(dim=0)
    assert bits[0] == 0
    assert abs(bits[1] - 0.3) < 0.02
    assert bits[2] == 1


def test_what_follows_does_not_depend_on_the_probability() -> None:
    never, often = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    assert not torch.equal(chance(0.0, 100, never), chance(0.9, 100, often))
    assert torch.equal(torch.rand(5, generator=never), torch.rand(5, generator=often))


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
