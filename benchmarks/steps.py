"""Iterations of guided training against plain training, by the steppers of the training loop on the embedded images.

The paper's estimate is 1 + 2·B_I/B_D for a pair batch B_I beside a task batch B_D: a pair is two images, run once.
Corrected at each k-th iteration alone, the second term is divided by k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

import torch
from measure import Measurement, compare, take_turns, timed
from torch import nn

from ipg.config import RunConfig
from ipg.data.batches import Batches
from ipg.data.load import load
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class
from ipg.pairs.pairset import PairSampler
from ipg.training.capture import CapturedStep
from ipg.training.device import numerics
from ipg.training.materials import gather
from ipg.training.stepping import EagerStep, Means, PairFeed

__all__ = ["measure"]

SIZES = {"small_cnn": 14, "mnist_cnn": 28}
"""Networks and the side of the images they are made for."""
LEAST_SECONDS = 0.5
"""About how long a block of iterations of plain training takes at least."""


@dataclass(frozen=True)
class Kind:
    """What one case trains with."""

    name: str
    method: str
    pair_batch: int = 1
    every: int = 1

    def ideal(self, batch: int) -> float:
        """Its cost in units of plain training."""
        return 1 + 2 * self.pair_batch / (self.every * batch)


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    batch = 8 if quick else 128
    quarter = batch // 4
    kinds = [
        Kind("erm", "erm"),
        Kind(f"ipg b{batch}", "ipg", batch),
        Kind(f"ipg b{quarter}", "ipg", quarter),
        Kind(f"ipg b{quarter} every4", "ipg", quarter, 4),
    ]
    for model, size in SIZES.items():
        table = load("colored_fashion", size=size)
        base = RunConfig(
            model=model, size=size, batch=batch, pairs=4 * batch, learning_rate=1e-3, schedule="constant",
            alpha=0.1, margin="0.1", held_out_pairs=0, precision="tf32", device=device.type,
        )  # fmt: skip
        with numerics(base, device):
            blocks = {f"{model} {kind.name}": _stepper(base, kind, table, device) for kind in kinds}
            steps = 4 if device.type == "cpu" else 40  # whole cycles of `every`
            for block in blocks.values():
                block(steps)  # warm up; on a GPU also capture
            if not quick:
                once = timed(partial(blocks[f"{model} erm"], steps), device)
                steps *= max(1, round(LEAST_SECONDS / once))
            work = {name: partial(_per_step, block, steps, device) for name, block in blocks.items()}
            times = take_turns(work, 1 if quick else 8)
        baseline = f"{model} erm"
        ideals = {f"{model} {kind.name}": kind.ideal(batch) for kind in kinds if kind.method != "erm"}
        yield from compare("steps", times, unit="ms", baselines=dict.fromkeys(ideals, baseline), ideals=ideals)


def _per_step(block: Callable[[int], None], steps: int, device: torch.device) -> float:
    return 1e3 * timed(partial(block, steps), device) / steps


def _stepper(base: RunConfig, kind: Kind, table: ImageTable, device: torch.device) -> Callable[[int], None]:
    """A function that makes as many iterations as it is told, put together as the loop does."""
    config = base.with_changes(method=kind.method, pair_batch=kind.pair_batch, every=kind.every)
    materials = gather(config, table=table).to(device)
    model, cuda = materials.model, device.type == "cuda"
    rate = torch.tensor(config.learning_rate, device=device) if cuda else config.learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=device.type != "mps", capturable=cuda)
    feed = PairFeed(PairSampler(materials.pairs, config.pair_batch)) if materials.pairs is not None else None
    method = method_class(config.method)(Setup(model, optimizer, nn.CrossEntropyLoss(), config, feed))
    batches = Batches(materials.table.part("train"), config.batch, seed=config.seed)
    stepper = (CapturedStep if cuda else EagerStep)(method, batches, feed, Means())
    model.train()
    full = (rows for epoch in count() for rows in batches.rows(epoch) if len(rows) == config.batch)

    def block(steps: int) -> None:
        for rows in islice(full, steps):
            stepper(rows)

    return block
