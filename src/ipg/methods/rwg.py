"""RWG, reweighted sampling: every group is drawn equally often, then plain training.

Idrissi, Arjovsky, Pezeshki and Lopez-Paz, "Simple data balancing achieves competitive worst-group-accuracy", CLeaR
2022. With G groups that have images, n_g of them in group g, a pass draws with replacement

    P(image i) = 1 / (G · n_{g(i)}),    L = 1/B Σ_i CE(f(x_i), y_i)

Differs from the paper: a pass is as many draws as there are images; groups without images are left out. The draws are
balanced, so the loss is never weighted by class, whatever --class-weighted says.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ipg.data.batches import Sampling
from ipg.data.table import ImageTable
from ipg.methods.base import Need
from ipg.methods.erm import Unweighted

__all__ = ["Rwg", "balanced_weights"]


def balanced_weights(table: ImageTable) -> Tensor:
    """How likely each row is drawn when all groups that have images are alike, (N,); the sum is 1."""
    group = table.group.cpu()
    counts = torch.bincount(group).double()  # (G,)
    return 1 / ((counts > 0).sum() * counts[group])


class Rwg(Unweighted):
    """Plain training on images drawn so that all groups are alike."""

    name: ClassVar[str] = "rwg"
    summary: ClassVar[str] = "Plain training that draws every group equally often, with replacement."
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})

    @classmethod
    def sampling(cls, table: ImageTable, options: Any, *, seed: int) -> Sampling:
        """Draws with replacement, groups alike."""
        del options, seed
        return Sampling(weights=balanced_weights(table))
