"""Perfect pairs of coloured images: an image and itself in the other colour, its two channels swapped."""

from __future__ import annotations

import torch

from ipg.data.table import ImageTable
from ipg.pairs.balance import deal
from ipg.pairs.pairset import PairSet

__all__ = ["build"]


def build(table: ImageTable, count: int, *, split: str = "train", seed: int = 0) -> PairSet:
    """Pair images of `split` with their recoloured selves.

    The originals, the pairs' first members, are drawn without replacement and equally from those groups (label and
    colour) that have images in the split; where one has too few, the others give more (`balance.deal`). With one
    seed, fewer pairs are the beginning of more.

    Args:
        table: two-channel images whose attribute is the channel they stand in.
        count: how many pairs; not more than the split has images.
        split: whose images to use.
        seed: of the draw.
    """
    if table.images.shape[1] != 2:
        raise ValueError(
            f"{table.name}: recoloured pairs swap two channels, but its images have {table.images.shape[1]}; "
            f"make them by masks (background), by images of your own (counterparts), or of two images (matched)"
        )
    generator = torch.Generator().manual_seed(seed)
    rows = table.indices(split)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    group = table.group[rows]
    rows = deal({table.group_names[g]: rows[group == g] for g in sorted(set(group.tolist()))}, count)
    original = table.images[rows]
    return PairSet(
        first=original,
        second=original.flip(1),
        label=table.label[rows],
        source=torch.stack([rows, rows], dim=1),
        split=split,
        builder="recolored",
    )
