"""The grayscale oracle sees no colour."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.methods import method_class
from ipg.training.materials import gather


def test_both_colours_are_one_input(make_table: Callable[..., ImageTable]) -> None:
    images = make_table().images
    transform = method_class("oracle").transform
    assert transform(images).shape == (200, 1, 8, 8)
    assert torch.equal(transform(images), transform(images.flip(1)))  # the two channels swapped
    assert len(torch.unique(transform(images).flatten(1), dim=0)) == 200  # and yet every image is another


def test_everything_an_oracle_meets_is_gray(make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    config = RunConfig(method="oracle", held_out_pairs=8)
    materials = gather(config, table=table)
    assert materials.table.images.shape == (200, 1, 8, 8)
    assert torch.equal(materials.table.group, table.group)  # groups are still those of the colours
    assert materials.held_out is not None
    assert torch.equal(materials.held_out.first, materials.held_out.second)  # recoloured pairs
    assert materials.model(materials.table.images[:3].float()).shape == (3, 2)
    plain = gather(config.with_changes(method="erm"), table=table)
    assert plain.held_out is not None
    assert not torch.equal(plain.held_out.first, plain.held_out.second)


def test_images_without_two_colours(make_table: Callable[..., ImageTable]) -> None:
    with pytest.raises(ValueError, match="these images have 3 channels: take another method than oracle"):
        method_class("oracle").transform(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
