"""Training iterations to be timed, put together as the training loop puts them together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import count, islice

import torch
from torch import Tensor

from ipg.benchmarks.measure import timed
from ipg.config import RunConfig
from ipg.data.batches import Batch, Batches
from ipg.evaluation.batch_norm import keep_statistics
from ipg.training.assembly import Assembly
from ipg.training.device import numerics
from ipg.training.distributed import Team
from ipg.training.engine import compiling, resolve
from ipg.training.materials import Materials

__all__ = ["Block", "as_in_a_run", "iterations", "per_step", "steps_for"]

Block = Callable[[int], None]
"""Makes as many iterations as it is told, going on where it stopped."""


def iterations(
    config: RunConfig, materials: Materials, device: torch.device, *, resident: float = 1.0, ready: bool = False
) -> Block:
    """Iterations of `config` on full batches, by the very parts that the training loop is made of.

    Args:
        config: what to do; of a method without pairs where images are `ready`.
        materials: data, pairs and network to do it with.
        device: where.
        resident: the share of a GPU's free memory that images may take; they are streamed where they would take more.
        ready: always the same batch, as the network takes it.
    """
    config = resolve(config, device, processes=1)
    run = Assembly(config, materials.to(device, resident=resident), device, (), Team())
    if ready:
        run.step = type(run.step)(run.method, _Ready(run.batches), None, run.means)
    run.model.train()
    if config.batch_norm == "eval":
        keep_statistics(run.model)
    full = (rows for epoch in count() for rows in run.batches.rows(epoch) if len(rows) == config.batch)

    def block(steps: int) -> None:
        for rows in islice(full, steps):
            run.step(rows)

    return block


class _Ready(Batches):
    """The first full batch of others, at every iteration again."""

    def __init__(self, others: Batches) -> None:
        super().__init__(others.table, others.batch_size, seed=others.seed)
        self._batch = others.take(torch.arange(others.batch_size, device=others.device))

    def take(self, rows: Tensor) -> Batch:
        """The one batch."""
        del rows
        return self._batch


def as_in_a_run(step: Block, config: RunConfig, device: torch.device, *, length: int | None = None) -> Block:
    """Iterations under the numerics of a run, of that `length`, without what torch says while it compiles."""

    def block(steps: int) -> None:
        with numerics(config, device, iterations=length), compiling(strictly=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step(steps)

    return block


def per_step(block: Block, steps: int, device: torch.device) -> float:
    """Milliseconds an iteration, over `steps` of them."""
    return 1e3 * timed(partial(block, steps), device) / steps


def steps_for(block: Block, device: torch.device, *, seconds: float) -> int:
    """How many iterations take about that long, in whole fours: whole cycles of `every=4`."""
    steps = 4 if device.type == "cpu" else 40
    once = timed(partial(block, steps), device)
    return steps * max(1, round(seconds / once))
