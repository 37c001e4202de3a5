"""Pair-contrastive training: features of a label are drawn together, those of others pushed apart, on pairs.

The loss is that of Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, equation 2. With z_i the normalised
features of the 2n members of a pair batch, P(i) the members other than i that have its label (its partner is always
one) and T the temperature,

    L_S = −1/(2n) Σ_i 1/|P(i)| Σ_{p ∈ P(i)} log[ exp(z_i·z_p/T) / Σ_{a ≠ i} exp(z_i·z_a/T) ],    L = L_T + λ L_S

Differs from the paper: the second view of an image is its partner in the pair, not a random augmentation; features are
those that enter the head, without a projection network; the loss is added to the cross-entropy of the task batch
instead of coming before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.collectives import find_peers
from ipg.data.batches import Batch
from ipg.guidance import DrawsPairs
from ipg.methods.base import Method, Need, Setup
from ipg.methods.options import option
from ipg.methods.space import Choice, Range
from ipg.paired import Pairs, gather_pairs
from ipg.rationale import HeadTap, find_head, full_precision

__all__ = ["PairContrastive", "contrastive"]


@dataclass(frozen=True)
class PairContrastiveOptions:
    """How much the contrastive loss counts, and how sharp it is."""

    weight: float = option(1.0, least=0)
    temperature: float = option(0.1, above=0)


def contrastive(features: Tensor, label: Tensor, *, temperature: float) -> Tensor:
    """The supervised contrastive loss of features (m, D) with labels (m,), each of which occurs twice or more."""
    direction = F.normalize(features, dim=1)
    similarity = direction @ direction.T / temperature  # (m, m)
    itself = torch.eye(len(label), dtype=torch.bool, device=label.device)
    others = torch.logsumexp(similarity.masked_fill(itself, -math.inf), dim=1, keepdim=True)  # (m, 1)
    positive = (label[:, None] == label) & ~itself
    return -((similarity - others) * positive).sum(dim=1).div(positive.sum(dim=1)).mean()


class PairContrastive(Method):
    """Cross-entropy with a contrastive loss on pairs beside it."""

    name: ClassVar[str] = "pair_contrastive"
    summary: ClassVar[str] = "Plain training with a supervised contrastive loss on the features of pairs."
    cost: ClassVar[str] = "1 + 2 B_I/B_D"
    needs: ClassVar[frozenset[Need]] = frozenset({"pairs"})
    Options: ClassVar[type] = PairContrastiveOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": Choice((0.1, 1.0, 10.0))}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.peers = find_peers(setup.model, "auto")
        self.tap = HeadTap(find_head(setup.model))

    @property
    def due(self) -> bool:
        """Pairs are drawn at every step."""
        return True

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the sum of both losses, images and pairs in one pass."""
        setup, options = self.setup, cast(PairContrastiveOptions, self.options)
        pairs = cast(DrawsPairs, setup.pairs).draw()
        setup.optimizer.zero_grad()
        with self.tap.listen():
            logits = setup.logits(torch.cat([batch.image, pairs.first, pairs.second]))  # (B + 2n, K)
        features, _ = self.tap.take()
        task_loss = setup.criterion(logits[: len(batch.label)], batch.label)
        members, label = self._members(pairs, full_precision(features[len(batch.label) :]))
        pair_loss = contrastive(members, label, temperature=options.temperature)
        loss = task_loss + options.weight * pair_loss
        loss.backward()  # type: ignore[no-untyped-call]
        setup.optimizer.step()
        return {"task_loss": task_loss.detach(), "contrastive": pair_loss.detach()}

    def _members(self, pairs: Pairs, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features (2n, D) and labels (2n,) of the whole pair batch, of which this process may have a shard."""
        label = pairs.label
        if self.peers.size > 1:
            features, label, _ = gather_pairs(pairs, features, torch.zeros_like(label), self.peers)
        return features, torch.cat([label, label])

    def close(self) -> None:
        """Take the hook off the head."""
        self.tap.remove()
