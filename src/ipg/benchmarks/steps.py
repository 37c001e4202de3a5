"""Iterations of guided training against plain training, by the steppers of the training loop on the embedded images.

The paper's estimate is 1 + 2·B_I/B_D for a pair batch B_I beside a task batch B_D: a pair is two images, run once.
Corrected at each k-th iteration alone, the second term is divided by k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ipg.benchmarks.iterations import Block, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.config import RunConfig
from ipg.data.load import load
from ipg.data.table import ImageTable
from ipg.training.device import numerics
from ipg.training.materials import gather

__all__ = ["LEAST_SECONDS", "SIZES", "Kind", "measure"]

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
    """Time an iteration of each kind on each network."""
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
            blocks = {f"{model} {kind.name}": _block(base, kind, table, device) for kind in kinds}
            for block in blocks.values():
                block(4 if device.type == "cpu" else 40)  # warm up; on a GPU also capture
            steps = 4 if quick else steps_for(blocks[f"{model} erm"], device, seconds=LEAST_SECONDS)
            work = {name: partial(per_step, block, steps, device) for name, block in blocks.items()}
            times = take_turns(work, 1 if quick else 8)
        baseline = f"{model} erm"
        ideals = {f"{model} {kind.name}": kind.ideal(batch) for kind in kinds if kind.method != "erm"}
        yield from compare("steps", times, unit="ms", baselines=dict.fromkeys(ideals, baseline), ideals=ideals)


def _block(base: RunConfig, kind: Kind, table: ImageTable, device: torch.device) -> Block:
    config = base.with_changes(method=kind.method, pair_batch=kind.pair_batch, every=kind.every)
    return iterations(config, gather(config, table=table), device)
