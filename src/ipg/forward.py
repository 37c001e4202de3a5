"""A batch of pairs on its way through a model, to what is compared of it. This file needs torch alone."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

import ipg.rationale as rationales
from ipg.collectives import Peers, in_shards, unreduced
from ipg.comparison import embed
from ipg.gradients import check_reach, first_part
from ipg.modes import Modes
from ipg.paired import Pairs, check_replicas, check_shard, gather_pairs
from ipg.settings import check_head

__all__ = ["Compared", "PairForward"]


class Compared(NamedTuple):
    """What is compared of a whole batch of pairs, whichever process they ran in."""

    embedded: Tensor
    """Of the first and then of the second members, (2n, D); with gradients."""
    label: Tensor
    """Of each pair, (n,)."""
    differ: Tensor
    """Whether the members of each pair are classified differently, (n,)."""


class PairForward:
    """Runs pairs through a model in one forward pass, in which its head is listened to.

    Args:
        model: a classifier.
        head: its linear head, where it is not found by itself.
        distance: "rationale", "features" or "logits", what is compared.
        autocast: dtype to run in; None is that of the surrounding code.
        hold: keep the model's BatchNorm in eval mode.
        peers: the processes that each run a shard of the pairs.
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Linear | None,
        *,
        distance: str,
        autocast: torch.dtype | None,
        hold: bool,
        peers: Peers,
    ) -> None:
        head = head if head is not None else rationales.find_head(model)
        if distance != "features":
            check_head(head)
        self.tap = rationales.HeadTap(head)
        weakref.finalize(self, self.tap.remove).atexit = False  # no hook stays behind where nobody calls `close`
        self.modes = Modes(model, hold=hold)
        self._model, self._distance, self._autocast, self._peers = model, distance, autocast, peers
        self._agreed = peers.size == 1
        self._verified = False

    def __call__(self, pairs: Pairs, parameters: Sequence[Tensor], iteration: int) -> Compared:
        """What is compared of `pairs`, of which this process has its shard.

        Of several processes the first call also compares the replicas, for which the host waits.

        Raises:
            ValueError: the images are bytes, the shards do not fit together, the replicas differ, or the head is not
                the layer that produces the logits.
            RuntimeError: no parameter of the optimizer before the head is reached, though there are some, or FSDP2
                shards the head's weight again once it has run.
        """
        n, head = len(pairs), self.tap.head
        if pairs.first.dtype == torch.uint8:
            raise ValueError("these pairs are images of bytes: divide them by 255, or draw them with ipg.PairSampler")
        check_shard(pairs, self._peers)
        if not self._agreed:
            self._agreed = True
            check_replicas(pairs, self._peers, parameters, iteration=iteration)
        try:
            with self.modes.comparing(), self.tap.listen(), self._casting(pairs.first.device), unreduced(self._model):
                output = self._model(torch.cat([pairs.first, pairs.second]))  # one forward: members share statistics
        except Exception as error:
            error.add_note(f"It was raised while the model ran {pairs!r}: they have to be like its training images.")
            raise
        features, logits = self.tap.take(2 * n)  # (2n, D), (2n, K)
        if not self._verified:
            rationales.verify_head(self._model, head, logits, output)
            self._verified = True
        if not features.requires_grad:
            check_reach(output, self._model, head, parameters, sharded=self._peers.sharded)
        if self._peers.sharded and in_shards(head.weight):
            raise RuntimeError(
                "the head's weight is sharded again once it has run: call fully_shard on the blocks before the head "
                "and on the whole model, not on the head itself, and leave reshard_after_forward of the whole as it is"
            )
        embedded = embed(self._distance, features, logits, head.weight)
        if self._peers.sharded:
            embedded = embedded + 0 * first_part(output, logits).sum()  # FSDP's backward begins at the model's output
        differ = rationales.disagreeing(logits[:n].detach(), logits[n:].detach())
        if self._peers.size > 1:
            return Compared(*gather_pairs(pairs, embedded, differ, self._peers))
        return Compared(embedded, pairs.label, differ)

    def _casting(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext() if self._autocast is None else torch.autocast(device.type, dtype=self._autocast)

    def close(self) -> None:
        """Leave the model as a plain network: no hook at its head, BatchNorm as `model.train()` says."""
        self.tap.remove()
        self.modes.release()
