"""Small images that tests and campaigns train on."""

from __future__ import annotations

import torch
from torch import Tensor

from ipg.data.table import ImageTable

__all__ = ["bars", "halves"]


def bars(
    *, train: int = 120, validation: int = 40, test: int = 40, agreement: float = 0.8, seed: int = 0
) -> ImageTable:
    """A table of 2x8x8 images: the half that is bright is the label, the channel the attribute."""
    n = train + validation + test
    generator = torch.Generator().manual_seed(seed)
    row = torch.arange(n)
    label = row % 2
    attribute = torch.where(torch.rand(n, generator=generator) < agreement, label, 1 - label)
    grey = torch.randint(0, 60, (n, 2, 4, 8), generator=generator)
    grey[row, label] += torch.randint(40, 160, (n, 1, 1), generator=generator)
    images = torch.zeros(n, 2, 8, 8, dtype=torch.uint8)
    images[row, attribute] = grey.view(n, 8, 8).to(torch.uint8)
    return ImageTable(
        name="bars",
        images=images,
        label=label,
        attribute=attribute,
        split=torch.repeat_interleave(torch.tensor([train, validation, test])),
        environment=row // 2 % 2,
        content=2 * label + row // 4 % 2,
        splits=("train", "validation", "test"),
        classes=("top", "bottom"),
        attributes=("red", "green"),
    )


def halves(table: ImageTable) -> Tensor:
    """Masks of the training images of such a table, of any size: the half that is bright."""
    train = table.part("train")
    height, width = train.images.shape[2:]
    half = torch.arange(height)[:, None].expand(height, width) // (height // 2)
    bright: Tensor = half == train.label[:, None, None, None]
    return bright.to(torch.uint8) * 255
