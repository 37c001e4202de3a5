"""Batches by index from data that lies on the device: no worker processes, no copies, the same order again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ipg.comparison import compiled
from ipg.data.table import ImageTable
from ipg.seeds import derive_seed

__all__ = ["Batch", "Batches"]


class Batch(NamedTuple):
    """A task batch."""

    image: Tensor  # (B, C, H, W), float in [0, 1]
    label: Tensor  # (B,)
    group: Tensor  # (B,)
    environment: Tensor  # (B,)
    row: Tensor  # (B,); position in the training table


class Batches:
    """Shuffled passes over `table`; the order of a pass is a function of the seed and the pass alone."""

    def __init__(self, table: ImageTable, batch_size: int, *, seed: int, compile: bool = False) -> None:
        if len(table) == 0:
            raise ValueError(f"{table.name}: there is no image to train on")
        self.table, self.batch_size, self.seed = table, batch_size, seed
        self._group = table.group
        self._gather = compiled(_gather) if compile else _gather

    def __len__(self) -> int:
        """Batches a pass; the last may be smaller."""
        return -(-len(self.table) // self.batch_size)

    def rows(self, epoch: int, *, start: int = 0) -> Iterator[Tensor]:
        """The batches of pass `epoch` from the `start`-th on, each as rows on the table's device."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        order = torch.randperm(len(self.table), generator=generator).to(self.table.label.device)
        yield from torch.split(order, self.batch_size)[start:]

    def take(self, rows: Tensor) -> Batch:
        """The images of `rows`."""
        table = self.table
        columns = self._gather(table.images, table.label, self._group, table.environment, rows)
        return Batch._make([*columns, rows])


def _gather(images: Tensor, label: Tensor, group: Tensor, environment: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    return images[rows].float() / 255, label[rows], group[rows], environment[rows]
