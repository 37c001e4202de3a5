"""Pair augmentation: the members of the pairs are training images like any other.

The plain way to use pairs, after data augmentation by counterfactuals (Kaushik, Hovy and Lipton, "Learning the
Difference that Makes a Difference with Counterfactually-Augmented Data", ICLR 2020). With a task batch and a batch of
n pairs, each with the label y_i that its members share, and s the share of the pairs,

    L = (1 − s) · L_T + s · 1/(2n) Σ_i [CE(f(x_i), y_i) + CE(f(x'_i), y_i)]

Differs from the paper: pairs are not copied into the training images until they make the share s of an epoch. A batch
of them is drawn at every iteration, whatever its size, and weighs s in the loss, which is the same in the mean. Both
terms are weighted by class where the run is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from ipg.collectives import find_peers
from ipg.data.batches import Batch
from ipg.guidance import DrawsPairs, Pairs
from ipg.methods.base import Method, Need, Setup
from ipg.methods.options import option
from ipg.methods.space import Choice, Range

__all__ = ["PairAugmentation"]


@dataclass(frozen=True)
class PairAugmentationOptions:
    """How much of every batch the pairs make."""

    share: float = option(0.1, least=0, most=1)


class PairAugmentation(Method):
    """Plain training with the members of the pairs among its images."""

    name: ClassVar[str] = "pair_augmentation"
    summary: ClassVar[str] = "Plain training with both members of every pair as images of their own."
    cost: ClassVar[str] = "1 + 2 B_I/B_D"
    needs: ClassVar[frozenset[Need]] = frozenset({"pairs"})
    Options: ClassVar[type] = PairAugmentationOptions
    space: ClassVar[Mapping[str, Range]] = {"share": Choice((0.03, 0.1, 0.25, 0.5))}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.peers = find_peers(setup.model, "auto")

    @property
    def due(self) -> bool:
        """Pairs are drawn at every step."""
        return True

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on task images and pairs together."""
        setup, share = self.setup, cast(PairAugmentationOptions, self.options).share
        image, label = self._members(cast(DrawsPairs, setup.pairs).draw())
        setup.optimizer.zero_grad()
        logits = setup.logits(torch.cat([batch.image, image]))  # (B + 2n, K)
        task_loss = setup.criterion(logits[: len(batch.label)], batch.label)
        pair_loss = setup.criterion(logits[len(batch.label) :], label)
        loss = (1 - share) * task_loss + share * pair_loss
        loss.backward()  # type: ignore[no-untyped-call]
        setup.optimizer.step()
        return {"task_loss": task_loss.detach(), "pair_loss": pair_loss.detach()}

    def _members(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Images (2n, …) and labels (2n,) of both members, without the padding that ends the last process's shard."""
        n = len(pairs)
        if pairs.total is not None:
            n = max(0, min(n, pairs.total - self.peers.index * n))
        return torch.cat([pairs.first[:n], pairs.second[:n]]), pairs.label[:n].repeat(2)
