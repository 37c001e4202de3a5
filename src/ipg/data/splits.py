"""Splits: what they are called, and drawing the missing ones so that every group is in each as often as it should."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ipg.seeds import derive_seed

__all__ = ["SHARES", "SPLITS", "SPLIT_NAMES", "draw_missing"]

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {
    **{"train": 0, "validation": 1, "test": 2, "training": 0, "val": 1, "valid": 1, "dev": 1, "testing": 2},
    **{"0": 0, "1": 1, "2": 2},
}
"""What people call them, and their numbers in the official files."""
SHARES = {1: 0.15, 2: 0.15}
"""The share of the training images that a missing validation or test split gets."""


def draw_missing(split: Tensor, group: Tensor, alike: Sequence[Hashable], *, seed: int) -> Tensor:
    """Give training images to the splits that have none, stratified by group and drawn from the seed.

    Args:
        split: the split of every row as far as it is known, (N,); all 0 where nothing is.
        group: of every row, (N,).
        alike: rows with the same value hold the same image and stay in one split, so that none is seen in training and
            tested on.
        seed: of the draw.

    Returns:
        The split of every row, (N,). A group of three or more training images is in every split that is made.
    """
    made = split.clone()
    missing = [number for number in SHARES if not bool((split == number).any())]
    for name in sorted(set(group.tolist())):
        rows = torch.nonzero((group == name) & (split == 0)).flatten()
        generator = torch.Generator().manual_seed(derive_seed(seed, "split", name))
        order = rows[torch.randperm(len(rows), generator=generator)]
        start = 0
        for number in missing:
            count = max(round(SHARES[number] * len(rows)), int(len(rows) > len(missing)))
            made[order[start : start + count]] = number
            start += count
    first: dict[Hashable, int] = {}
    for row in torch.nonzero(split == 0).flatten().tolist():  # rows whose split was given stay where they are
        made[row] = made[first.setdefault(alike[row], row)]
    return made
