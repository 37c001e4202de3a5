"""Batches by index: from data that lies on the device, without workers or copies, or streamed to it ahead of use.

The order of a pass is a function of the seed and the pass alone. Views (random crops, flips) are drawn on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor

from ipg.comparison import compiled
from ipg.data.augment import Augmentation, look
from ipg.data.table import ImageTable
from ipg.seeds import derive_seed

__all__ = ["Batch", "Batches", "Sampling"]


NO_MASK = torch.empty(0)
"""In place of the masks of a batch, for methods that need none."""
AHEAD = 3
"""How many batches of streamed images are gathered ahead."""


class Batch(NamedTuple):
    """A task batch."""

    image: Tensor  # (B, C, H, W), float in [0, 1]
    label: Tensor  # (B,)
    group: Tensor  # (B,)
    environment: Tensor  # (B,)
    row: Tensor  # (B,); position in the training table
    mask: Tensor = NO_MASK  # (B, 1, H, W), float in [0, 1], where the method needs masks; elsewhere empty


class Sampling(NamedTuple):
    """Which images a pass draws: all of them once unless told otherwise."""

    rows: Tensor | None = None  # (n,)
    """The only ones that are drawn, as often as they are named."""
    weights: Tensor | None = None  # (N,)
    """Of every image of the table, drawn with replacement, as many as there are rows."""


class Batches:
    """Shuffled passes over `table`.

    A table whose images stay in the machine's memory, or in a file mapped into it, while its labels lie on a GPU is
    *streamed*: a thread gathers the images of the next batch while the device is at the present one.

    Args:
        table: the images to train on.
        batch_size: images a batch.
        seed: of the order.
        sampling: which images are drawn; each once a pass by default.
        augmentation: the views that are drawn of them; none by default.
        share: this process's part of the rows of a batch, where several train together; all of them by default.
        compile: gather and scale in one kernel.
        masks: of every image of the table, (N, 1, H, W) of uint8, seen through the view of its image; none by default.
        steps: batches an epoch, taken from as many passes as it takes; those of one pass by default.
    """

    def __init__(
        self,
        table: ImageTable,
        batch_size: int,
        *,
        seed: int,
        sampling: Sampling | None = None,
        augmentation: Augmentation | None = None,
        share: Callable[[Tensor], Tensor] | None = None,
        compile: bool = False,
        masks: Tensor | None = None,
        steps: int | None = None,
    ) -> None:
        if len(table) == 0:
            raise ValueError(f"{table.name}: there is no image to train on")
        self.table, self.batch_size, self.seed = table, batch_size, seed
        sampling = sampling or Sampling()
        self._weights = None if sampling.weights is None else sampling.weights.cpu().double()
        self._asked = steps
        self.draw_from(sampling.rows)
        self.augmentation = augmentation or Augmentation()
        self.device = table.label.device
        self.streamed = table.images.device != self.device
        self._share = share or _whole
        self._group = table.group
        self._masks = masks
        self._gather = compiled(_gather) if compile else _gather
        self._view = compiled(look) if compile else look
        self._placed: Tensor | None = None  # the images of the batch that is next, where a captured step finds them

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._asked or self._in_a_pass

    def draw_from(self, rows: Tensor | None) -> None:
        """Draw these images alone, (n,), as often as they are named; all of them where none are."""
        self.drawn = None if rows is None else rows.cpu()
        self._count = len(self.table) if self.drawn is None else len(self.drawn)
        self._in_a_pass = -(-self._count // self.batch_size)  # the last may be smaller

    def rows(self, epoch: int, *, start: int = 0) -> Iterator[Tensor]:
        """The batches of `epoch` from the `start`-th on, each as rows on the table's device.

        Of streamed images those of a batch are in their place once its rows are given.
        """
        parts = map(self._share, self._parts(epoch, start))
        if not self.streamed:
            yield from parts
            return
        with ThreadPoolExecutor(1, "images") as pool:
            coming = deque((rows, pool.submit(self._fetch, rows)) for rows in islice(parts, AHEAD))
            while coming:
                rows, images = coming.popleft()
                self._place(images.result())
                coming.extend((later, pool.submit(self._fetch, later)) for later in islice(parts, 1))
                yield rows.to(self.device, non_blocking=True)

    def _parts(self, epoch: int, start: int) -> Iterator[Tensor]:
        """The rows of the batches of `epoch` from the `start`-th on, where they are used first."""
        numbers = range(epoch * len(self) + start, (epoch + 1) * len(self))
        for turn, together in groupby(numbers, lambda number: number // self._in_a_pass):
            order = self._order(turn)
            batches = torch.split(order if self.streamed else order.to(self.device), self.batch_size)
            yield from (batches[number % self._in_a_pass] for number in together)

    def _order(self, turn: int) -> Tensor:
        """The rows of a pass, (n,)."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", turn))
        if self._weights is not None:
            return torch.multinomial(self._weights, self._count, replacement=True, generator=generator)
        order = torch.randperm(self._count, generator=generator)
        return order if self.drawn is None else self.drawn[order]

    def take(self, rows: Tensor) -> Batch:
        """The images of `rows`; of streamed ones those in place, whose rows they must be."""
        table = self.table
        images = self._placed[: len(rows)] if self._placed is not None else table.images
        where = torch.arange(len(rows), device=self.device) if self._placed is not None else rows
        image = self._gather(images, where)
        mask = NO_MASK if self._masks is None else self._gather(self._masks, rows)
        if self.augmentation:
            views = self.augmentation.draw(len(rows), self.device)
            image = self._view(image, views)
            mask = mask if self._masks is None else self._view(mask, views)
        return Batch(image, table.label[rows], self._group[rows], table.environment[rows], rows, mask)

    def _fetch(self, rows: Tensor) -> Tensor:
        """The images of `rows` in memory that the device can copy from by itself."""
        images = self.table.images
        found = torch.empty(len(rows), *images.shape[1:], dtype=images.dtype, pin_memory=self.device.type == "cuda")
        torch.index_select(images, 0, rows, out=found)
        return found

    def _place(self, images: Tensor) -> None:
        """Copy the images of the next batch to where captured steps read them."""
        if self._placed is None:
            shape = (self.batch_size, *images.shape[1:])
            self._placed = torch.empty(shape, dtype=images.dtype, device=self.device)
        self._placed[: len(images)].copy_(images, non_blocking=True)


def _whole(rows: Tensor) -> Tensor:
    return rows


def _gather(images: Tensor, rows: Tensor) -> Tensor:
    """Some of the uint8 `images` as floats in [0, 1]."""
    return images[rows].float() / 255
