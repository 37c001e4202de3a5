"""Invariance pairs held in memory, and the endless, seeded, resumable way to draw batches of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ipg.collectives import shard
from ipg.guidance import Pairs
from ipg.paired import in_short
from ipg.settings import check_state

__all__ = ["PairSampler", "PairSet"]


@dataclass(frozen=True, repr=False, eq=False)
class PairSet:
    """Invariance pairs: two images that share label and content and differ in the attribute."""

    first: Tensor  # (n, C, H, W), uint8
    second: Tensor  # (n, C, H, W), uint8
    label: Tensor  # (n,), int64
    source: Tensor  # (n, 2), int64; rows of the table the members come from (a recoloured member: its original)
    split: str
    """The split whose images were used: pairs of `train` guide, pairs of `validation` are held out."""
    builder: str
    """How the pairs were made: recolored, random, closest, …"""

    def __post_init__(self) -> None:
        if len(self.label):  # a set may be empty, a batch may not
            Pairs(self.first, self.second, self.label)  # shapes and dtypes
        if self.source.shape != (len(self.label), 2):
            raise ValueError(f"source must have shape ({len(self.label)}, 2), got {tuple(self.source.shape)}")

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        return f"PairSet({in_short(len(self), self.first)}, {self.builder}, of {self.split})"

    def take(self, rows: Tensor) -> PairSet:
        """The given pairs as a set of their own."""
        return replace(
            self, first=self.first[rows], second=self.second[rows], label=self.label[rows], source=self.source[rows]
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> PairSet:
        """The same pairs with `change` made to the images of both members."""
        return replace(self, first=change(self.first), second=change(self.second))

    def to(self, device: torch.device | str) -> PairSet:
        """The same pairs on `device`."""
        return replace(
            self,
            first=self.first.to(device),
            second=self.second.to(device),
            label=self.label.to(device),
            source=self.source.to(device),
        )

    def batch(self, rows: Tensor | slice) -> Pairs:
        """The given pairs as a batch of float images in [0, 1]."""
        return Pairs(_as_floats(self.first[rows]), _as_floats(self.second[rows]), self.label[rows])


def _as_floats(images: Tensor) -> Tensor:
    """Bytes as floats from 0 to 1, of torch's default precision as torchvision has them."""
    return images.to(torch.get_default_dtype()) / 255


def _alike(change: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both changed, and by the same random numbers: what `change` draws for the first is given back for the second.

    Those of torch, of Python and, where anybody has loaded it, of numpy.
    """
    states: list[tuple[Callable[[Any], None], Any]] = [(random.setstate, random.getstate())]
    if first.device.type == "mps":
        states.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    with torch.random.fork_rng([first.device] if first.is_cuda else []):
        changed = change(first)
    for put_back, state in states:
        put_back(state)
    return changed, change(second)


class PairSampler:
    """Draws batches of pairs without end: shuffled, each pair once before any comes again.

    A set that fits into one batch is drawn whole every time. Batches are full: one that reaches the end of a round
    goes on into the next.

    Args:
        pairs: a `PairSet`, or `Pairs`; images of bytes are drawn as floats from 0 to 1.
        batch_size: pairs a batch.
        seed: of the order. With equal seeds two samplers draw the same batches.
        part: (index, count) of this process among those that train together: of every batch it draws its shard.
            All of them need the same seed.
        transform: what task images go through beyond values from 0 to 1, such as a normalisation; the images of both
            members go through it as they are drawn. A random one, such as a crop, draws the same for both, from
            torch, Python or numpy.
    """

    def __init__(
        self,
        pairs: PairSet | Pairs,
        batch_size: int,
        *,
        seed: int = 0,
        part: tuple[int, int] = (0, 1),
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not isinstance(pairs, PairSet | Pairs):
            raise TypeError(
                f"pairs must be an ipg.PairSet or ipg.Pairs(first, second, label), got {type(pairs).__name__}"
            )
        index, count = part
        if not 0 <= index < count:
            raise ValueError(f"part={part} is out of range: expected (index, count) with 0 <= index < count")
        if int(batch_size) != batch_size or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r} is out of range: expected a whole number, at least 1")
        if len(pairs) == 0:
            raise ValueError("there are no pairs to draw from")
        self.pairs, self.part, self.transform = pairs, part, transform
        self.batch_size = min(int(batch_size), len(pairs))
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.arange(len(pairs), device="cpu")
        self._position = len(pairs)

    def __repr__(self) -> str:
        return f"PairSampler({self.pairs!r}, batch_size={self.batch_size})"

    def __iter__(self) -> Iterator[Pairs]:
        while True:
            yield self.draw()

    def draw(self) -> Pairs:
        """The next batch."""
        return self.take(self.draw_rows().to(self.pairs.label.device, non_blocking=True))

    def draw_rows(self) -> Tensor:
        """Which pairs the next batch holds, on the CPU, (batch_size,)."""
        n = len(self.pairs)
        if self.batch_size == n:
            return self._order
        rows = self._order[self._position : self._position + self.batch_size]
        self._position += self.batch_size
        if (missing := self.batch_size - len(rows)) > 0:
            self._order = torch.randperm(n, generator=self._generator, device="cpu")
            rows = torch.cat([rows, self._order[:missing]])
            self._position = missing
        return rows

    def take(self, rows: Tensor) -> Pairs:
        """The given pairs as a batch, or this process's shard of it; `rows` lies where the pairs lie."""
        pairs, (index, count) = self.pairs, self.part
        own = shard(rows, index, count) if count > 1 else rows
        if isinstance(pairs, PairSet):
            batch = pairs.batch(own)
        else:
            batch = Pairs(pairs.first[own], pairs.second[own], pairs.label[own])
            if batch.first.dtype == torch.uint8:
                batch = replace(batch, first=_as_floats(batch.first), second=_as_floats(batch.second))
        if self.transform is not None:
            first, second = _alike(self.transform, batch.first, batch.second)
            batch = replace(batch, first=first, second=second)
        return replace(batch, total=len(rows)) if count > 1 else batch

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on with the same batches."""
        return {"generator": self._generator.get_state(), "order": self._order.clone(), "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, wherever it was loaded to. A wrong one changes nothing."""
        state = {name: value.cpu() if hasattr(value, "cpu") else value for name, value in dict(state).items()}
        order, n = state.get("order"), len(self.pairs)
        if isinstance(order, Tensor) and order.ndim == 1 and len(order) != n:
            raise ValueError(f"this state is of a sampler over {len(order)} pairs, not {n}")
        check_state("PairSampler", state, self.state_dict())
        order, position = state["order"].to(torch.int64, copy=True), int(state["position"])
        if not torch.equal(order.sort().values, torch.arange(n, device="cpu")):
            raise ValueError(f"this is not the state of a PairSampler: order must hold each row from 0 to {n - 1} once")
        if not 0 <= position <= n:
            raise ValueError(f"this is not the state of a PairSampler: position must be from 0 to {n}, got {position}")
        self._generator.set_state(state["generator"])
        self._order, self._position = order, position
