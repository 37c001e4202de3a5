"""Logit pairing: a method of your own, under every command that trains.

The logits of the two images of a pair shall be alike:

    L = L_T + λ · 1/n Σ_i ‖f(x_i) − f(x'_i)‖²

Kannan, Kurakin and Goodfellow, "Adversarial Logit Pairing", 2018; there the second image is an adversarial copy.

Once it stands in `METHODS`, the method has all that others have: options, checks, searches, studies, resumed runs. The
script then is the command `ipg` with one method more, in its worker processes on this machine, too:

    python examples/own_method.py compare --methods erm,logit_pairing,ipg --seeds 2 --epochs 1
    python examples/own_method.py search --method logit_pairing --trials 10
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from ipg.data.batches import Batch
from ipg.guidance import DrawsPairs
from ipg.methods import METHODS, Method
from ipg.methods.base import Need
from ipg.methods.options import option
from ipg.methods.space import LogUniform, Range


@dataclass(frozen=True)
class LogitPairingOptions:
    """Given by `-o weight=3`, checked by type and range, and kept in every result."""

    weight: float = option(1.0, least=0)


class LogitPairing(Method):
    """Plain training with the logits of pairs drawn together."""

    name: ClassVar[str] = "logit_pairing"
    summary: ClassVar[str] = "Plain training with the logits of pairs drawn together."
    needs: ClassVar[frozenset[Need]] = frozenset({"pairs"})  # refused, with a reason, where there are none
    cost: ClassVar[str] = "1 + 2 B_I/B_D"
    alone: ClassVar[str] = "takes the mean over all pairs of a batch, of which each of several processes has a part"
    Options: ClassVar[type] = LogitPairingOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(1e-2, 1e2)}  # where `ipg search` looks

    @property
    def due(self) -> bool:
        """Pairs are drawn at every step."""
        return True

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One update; nothing in it waits for the device, so that it can be captured as a CUDA graph."""
        setup = self.setup
        pairs = cast(DrawsPairs, setup.pairs).draw()
        setup.optimizer.zero_grad()
        logits = setup.logits(torch.cat([batch.image, pairs.first, pairs.second]))  # (B + 2n, K)
        task, first, second = logits.split([len(batch.label), len(pairs), len(pairs)])
        task_loss = setup.criterion(task, batch.label)
        apart = (first - second).square().sum(dim=1).mean()
        (task_loss + self.options.weight * apart).backward()
        setup.optimizer.step()
        return {"task_loss": task_loss.detach(), "apart": apart.detach()}  # what stands in the metrics of the run


METHODS["logit_pairing"] = LogitPairing

if __name__ == "__main__":
    from ipg.__main__ import main

    main()
