"""Training iterations to be timed, put together as the training loop puts them together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, islice

import torch
from torch import nn

from ipg.benchmarks.measure import timed
from ipg.config import RunConfig
from ipg.data.batches import Batches
from ipg.methods import Setup, method_class
from ipg.pairs.pairset import PairSampler
from ipg.training.capture import CapturedStep
from ipg.training.device import autocast_dtype
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep, Means, PairFeed

__all__ = ["Block", "iterations", "per_step", "steps_for"]

Block = Callable[[int], None]
"""Makes as many iterations as it is told, going on where it stopped."""


def iterations(config: RunConfig, materials: Materials, device: torch.device) -> Block:
    """Iterations of `config` on full batches, by the stepper that the loop would use on `device`."""
    materials = materials.to(device)
    model, cuda = materials.model, device.type == "cuda"
    rate = torch.tensor(config.learning_rate, device=device) if cuda else config.learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=device.type != "mps", capturable=cuda)
    feed = PairFeed(PairSampler(materials.pairs, config.pair_batch)) if materials.pairs is not None else None
    setup = Setup(model, optimizer, nn.CrossEntropyLoss(), config, feed, autocast_dtype(config))
    method = method_class(config.method)(setup)
    batches = Batches(materials.table.part("train"), config.batch, seed=config.seed)
    stepper = (CapturedStep if cuda else EagerStep)(method, batches, feed, Means())
    model.train()
    full = (rows for epoch in count() for rows in batches.rows(epoch) if len(rows) == config.batch)

    def block(steps: int) -> None:
        for rows in islice(full, steps):
            stepper(rows)

    return block


def per_step(block: Block, steps: int, device: torch.device) -> float:
    """Milliseconds an iteration, over `steps` of them."""
    return 1e3 * timed(partial(block, steps), device) / steps


def steps_for(block: Block, device: torch.device, *, seconds: float) -> int:
    """How many iterations take about that long, in whole fours: whole cycles of `every=4`."""
    steps = 4 if device.type == "cpu" else 40
    once = timed(partial(block, steps), device)
    return steps * max(1, round(seconds / once))
