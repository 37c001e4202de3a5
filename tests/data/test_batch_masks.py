"""Masks in batches: of the same rows as the images, seen through the same views, and only where they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ipg.data.augment import Augmentation
from ipg.data.batches import Batches
from ipg.data.table import ImageTable


@pytest.fixture
def table(make_table: Callable[..., ImageTable], own_random_state: None) -> ImageTable:
    return make_table(train=50, validation=0, test=0)


def masks_of(table: ImageTable) -> Tensor:
    """The first channel of every image, so that a batch shows whether both were treated alike."""
    return table.images[:, :1].clone()


VIEWS = [None, Augmentation(crop=0.5), Augmentation(flip=True), Augmentation(crop=0.3, flip=True)]


@pytest.mark.parametrize("views", VIEWS)
def test_a_mask_is_cropped_and_mirrored_with_its_image(table: ImageTable, views: Augmentation | None) -> None:
    table = replace(table, images=torch.randint(256, table.images.shape, dtype=torch.uint8))
    batches = Batches(table, 16, seed=0, augmentation=views, masks=masks_of(table))
    moved = 0
    for rows in batches.rows(0):
        batch = batches.take(rows)
        assert batch.mask.shape == (len(rows), 1, 8, 8)
        torch.testing.assert_close(batch.mask, batch.image[:, :1], atol=1e-6, rtol=0)
        moved += int((batch.mask != table.images[rows, :1] / 255).any())
    assert (moved > 0) == (views is not None)


@pytest.mark.parametrize("views", VIEWS)
def test_images_are_the_same_bits_with_masks_and_without(table: ImageTable, views: Augmentation | None) -> None:
    rows = torch.tensor([7, 2, 31])
    found = []
    for masks in (None, masks_of(table)):
        torch.manual_seed(5)
        found.append(Batches(table, 16, seed=0, augmentation=views, masks=masks).take(rows))
    assert torch.equal(found[0].image, found[1].image)
    assert found[0].mask.numel() == 0


def test_masks_beside_streamed_images(table: ImageTable) -> None:
    """Where images are gathered ahead, masks still lie on the device and go by the rows."""
    batches = Batches(table, 16, seed=3, masks=masks_of(table))
    batches.streamed = True
    for rows in batches.rows(0):
        batch = batches.take(rows)
        assert torch.equal(batch.mask, batch.image[:, :1])
