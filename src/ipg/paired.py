"""A batch of invariance pairs, whole or one process's shard of it. This file needs torch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ipg.collectives import Peers, shard
from ipg.gradients import global_norm

__all__ = [
    "DrawsPairs", "Pairs", "check_kind", "check_replicas", "check_shard", "gather_pairs", "in_short", "next_batch",
]  # fmt: skip


def in_short(pairs: int, images: Tensor) -> str:
    """`40 pairs of (3, 8, 8), float32 on cpu`: what is told of many images, in place of all their numbers."""
    many = "1 pair" if pairs == 1 else f"{pairs:,} pairs"
    return f"{many} of {tuple(images.shape[1:])}, {str(images.dtype).removeprefix('torch.')} on {images.device}"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Pairs:
    """A batch of n invariance pairs: two images that differ in the shortcut alone, and the label they share."""

    first: Tensor  # (n, ...)
    second: Tensor  # (n, ...)
    label: Tensor  # (n,)
    total: int | None = None
    """Pairs in the whole batch, where this is a shard of it made by `shard`; the last shards may end in padding."""

    def __post_init__(self) -> None:
        for name in ("first", "second", "label"):
            if not isinstance(getattr(self, name), Tensor):
                raise TypeError(
                    f"pairs are tensors, got {type(getattr(self, name)).__name__} for {name}; use "
                    f"torch.as_tensor({name})"
                )
        if self.first.shape != self.second.shape:
            raise ValueError(
                f"the members of a pair must have one shape, got first {tuple(self.first.shape)} "
                f"and second {tuple(self.second.shape)}"
            )
        if self.first.dtype != self.second.dtype:
            raise ValueError(
                f"the members of a pair must have one dtype, got first {self.first.dtype} "
                f"and second {self.second.dtype}"
            )
        if self.label.shape != self.first.shape[:1]:
            raise ValueError(f"expected one label a pair, shape ({len(self.first)},), got {tuple(self.label.shape)}")
        if self.label.is_floating_point() or self.label.is_complex() or self.label.dtype == torch.bool:
            raise ValueError(f"pair labels must be integers, got {self.label.dtype}; use label.long()")
        if len(self.label) == 0:
            raise ValueError("a batch of pairs needs at least one pair, got none")
        if not self.first.device == self.second.device == self.label.device:
            raise ValueError(
                f"images and labels of pairs must be on one device, got first on {self.first.device}, second on "
                f"{self.second.device} and label on {self.label.device}: move all three to the model's"
            )

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        return f"Pairs({in_short(len(self), self.first)})"

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Pairs:
        """The same pairs on `device`; from pinned memory the host need not wait for the copy."""
        return self._each(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Pairs:
        """The same pairs in pinned memory, as a DataLoader with `pin_memory=True` asks for."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Pairs:
        return replace(self, first=change(self.first), second=change(self.second), label=change(self.label))

    def shard(self, index: int, count: int) -> Pairs:
        """The part of this batch for process `index` of `count`; all parts are of one length."""
        first, second, label = (shard(part, index, count) for part in (self.first, self.second, self.label))
        return Pairs(first, second, label, total=len(self))


class DrawsPairs(Protocol):
    """What `ipg.PairSampler` is: an endless source of pair batches."""

    def draw(self) -> Pairs:
        """The next batch."""
        ...


def check_kind(pairs: object) -> None:
    """Raise a TypeError where `pairs` are neither a batch nor a source of batches."""
    if not isinstance(pairs, Pairs) and not hasattr(pairs, "draw"):
        raise TypeError(
            f"pairs must be a batch, ipg.Pairs(first, second, label), or a sampler, ipg.PairSampler(pair_set, "
            f"batch_size=32), got {type(pairs).__name__}"
        )


def next_batch(pairs: Pairs | DrawsPairs) -> Pairs:
    """The batch itself, or the next one of its source."""
    batch: object = pairs if isinstance(pairs, Pairs) else pairs.draw()
    if not isinstance(batch, Pairs):
        raise TypeError(
            f"draw() of {type(pairs).__name__} must return ipg.Pairs(first, second, label), got {type(batch).__name__}"
        )
    return batch


def gather_pairs(pairs: Pairs, embedded: Tensor, differ: Tensor, peers: Peers) -> tuple[Tensor, Tensor, Tensor]:
    """From every process's shard what the whole batch has, the same everywhere, in one exchange.

    Args:
        pairs: this process's shard.
        embedded: what is compared, of both members, (2n/N, D); with gradients.
        differ: whether the members of each pair are classified differently, (n/N,).
        peers: the N processes.

    Returns:
        What is compared (2n, D), labels (n,) and disagreements (n,).
    """
    columns = (*embedded.chunk(2), pairs.label[:, None], differ[:, None])
    rows = torch.cat([column.to(embedded.dtype) for column in columns], dim=1)  # (n/N, 2D + 2)
    rows = peers.gather(rows)[: pairs.total]  # padding comes last
    first, second = rows[:, :-2].chunk(2, dim=1)
    label, differ = rows[:, -2:].detach().unbind(dim=1)
    return torch.cat([first, second]), label, differ > 0


def check_shard(pairs: Pairs, peers: Peers) -> None:
    """Refuse a batch that is not this process's shard of the whole one."""
    if pairs.total is not None and -(-pairs.total // peers.size) != len(pairs):
        raise ValueError(
            f"{len(pairs)} pairs are not one of {peers.size} shards of {pairs.total}: "
            f"use pairs.shard(index, {peers.size})"
        )


def check_replicas(pairs: Pairs, peers: Peers, parameters: Sequence[Tensor], *, iteration: int) -> None:
    """Refuse processes whose batches, iterations or parameters differ; the host waits."""
    values: dict[str, float] = {
        "number of pairs a process": len(pairs),
        "number of pairs in all": len(pairs) if pairs.total is None else pairs.total,
        "iteration": iteration,
    }
    if peers.averages:
        norm = global_norm([parameter.detach() for parameter in parameters])
        values["parameters' norm (wrap the model in DDP, or broadcast them first)"] = float(norm)
    peers.check_same(values, device=parameters[0].device)
