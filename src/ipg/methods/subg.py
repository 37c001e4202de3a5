"""SUBG, subsampled groups: every group is cut to the size of the smallest, then plain training.

Idrissi, Arjovsky, Pezeshki and Lopez-Paz, "Simple data balancing achieves competitive worst-group-accuracy", CLeaR
2022. Of each group a set S_g of m = min_g n_g images is drawn once, without replacement, and

    L = 1/B Σ_i CE(f(x_i), y_i),    i ∈ ∪_g S_g

Differs from the paper: groups without images are left out of the minimum. The images are balanced, so the loss is never
weighted by class, whatever --class-weighted says. An epoch is a pass over the images that are kept.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ipg.data.batches import Sampling
from ipg.data.table import ImageTable
from ipg.methods.base import Need
from ipg.methods.erm import Unweighted

__all__ = ["Subg"]


class Subg(Unweighted):
    """Plain training on as many images of each group as the smallest has."""

    name: ClassVar[str] = "subg"
    summary: ClassVar[str] = "Plain training on equally many images of every group, drawn once a seed."
    cost: ClassVar[str] = "1, on fewer images"
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})

    @classmethod
    def sampling(cls, table: ImageTable, options: Any, *, seed: int) -> Sampling:
        """The images that are kept, the same in every pass."""
        del options
        generator = torch.Generator().manual_seed(seed)
        group = table.group.cpu()
        members = [torch.nonzero(group == value).flatten() for value in range(len(table.group_names))]
        least = min(len(rows) for rows in members if len(rows))
        kept = [rows[torch.randperm(len(rows), generator=generator)[:least]] for rows in members]
        return Sampling(rows=torch.cat(kept).sort().values)
