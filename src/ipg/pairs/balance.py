"""How many pairs come from where: dealt in turn, so that every group gives equally as far as its images go."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["deal"]


def deal(queues: Mapping[str, Tensor], count: int) -> Tensor:
    """Take `count` rows from the queues in turn, one each, passing over a queue that is empty.

    Shares differ by at most one between queues that have enough; what a short one lacks, the others give. The first
    n rows dealt are the n that would have been dealt alone: small sets of pairs are the beginnings of large ones.

    Args:
        queues: (n_i, ...) rows by the name of their group, in the order in which to use them.
        count: rows to take in all.

    Returns:
        (count, ...).
    """
    sizes = {name: len(queue) for name, queue in queues.items()}
    available = sum(sizes.values())
    if count < 1:
        raise ValueError(f"count={count} is out of range: expected at least 1 pair")
    if count > available:
        groups = "; ".join(f"{name}: {size}" for name, size in sizes.items()) or "the split has no images"
        remedy = f"; ask for {available} or fewer" if available else ""
        raise ValueError(f"{count} pairs were asked for, but only {available} can be made ({groups}){remedy}")
    turn = torch.cat([torch.arange(size) for size in sizes.values()])
    return torch.cat(list(queues.values()))[turn.argsort(stable=True)[:count]]
