"""Images, pairs and a network of one's own, small enough to train in a second."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ipg.data.table import ImageTable
from ipg.pairs.pairset import PairSet

__all__ = ["SMALL", "Net", "net", "repainted", "stripes"]

SMALL: dict[str, Any] = {"epochs": 2, "batch": 32}
SPLITS = {"train": 180, "validation": 60, "test": 60}


def stripes(seed: int = 0) -> ImageTable:
    """Three classes, the place of a stripe; three attributes, its colour, which is the class's own in training."""
    n = sum(SPLITS.values())
    generator = torch.Generator().manual_seed(seed)
    row = torch.arange(n)
    label = row % 3
    split = torch.repeat_interleave(torch.tensor([*SPLITS.values()]))
    attribute = torch.where(split == 2, torch.randint(3, (n,), generator=generator), label)
    grey = torch.randint(0, 80, (n, 6, 6), generator=generator)
    grey.view(n, 3, 2, 6)[row, label] += 150
    images = torch.zeros(n, 3, 6, 6, dtype=torch.uint8)
    images[row, attribute] = grey.to(torch.uint8)
    zeros = torch.zeros_like(label)
    return ImageTable(
        name="stripes", images=images, label=label, attribute=attribute, split=split, environment=zeros, content=label,
        splits=tuple(SPLITS), classes=("top", "middle", "bottom"), attributes=("red", "green", "blue"),
    )  # fmt: skip


def repainted(table: ImageTable, split: str, count: int) -> PairSet:
    """Images with themselves in the next colour."""
    rows = table.indices(split)[:count]
    first, source = table.images[rows], torch.stack([rows, rows], dim=1)
    return PairSet(first, first.roll(1, dims=1), table.label[rows], source, split=split, builder="repainted")


class Net(nn.Module):
    """A network of one's own."""

    def __init__(self, channels: int = 3, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(channels * 36, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def net(**options: int) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(**options)
