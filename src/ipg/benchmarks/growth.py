"""How the cost of an iteration grows with each of its sizes, plain and guided, on a small network and made-up images.

One size is varied at a time. A cost that goes as the p-th power of a size is a line of slope p on logarithmic axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from ipg.benchmarks.iterations import Block, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.models import ConvNet
from ipg.pairs.pairset import PairSet
from ipg.training.device import numerics
from ipg.training.materials import Materials

__all__ = ["SWEEPS", "Sizes", "measure"]

LEAST_SECONDS = 0.25
"""About how long a block of iterations of plain training takes at least."""


@dataclass(frozen=True)
class Sizes:
    """What the cost of an iteration may depend on."""

    batch: int = 128
    pair_batch: int = 32
    pairs: int = 512
    classes: int = 2
    features: int = 32
    side: int = 14


SWEEPS: dict[str, tuple[int, ...]] = {
    "batch": (32, 64, 128, 256, 512),
    "pair_batch": (8, 16, 32, 64, 128, 256),
    "pairs": (32, 128, 512, 2048, 8192),
    "classes": (2, 10, 100, 1000, 10_000),
    "features": (32, 64, 128, 256, 512, 1024),
    "side": (14, 20, 28, 40, 56, 80),
}
"""The values each size takes while the others stay as they are in `Sizes`."""


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time an iteration of plain and of guided training at every value of every sweep."""
    base = Sizes(batch=8, pair_batch=4, pairs=8) if quick else Sizes()
    for name, values in SWEEPS.items():
        for value in values[:2] if quick else values:
            yield from _at(replace(base, **{name: value}), f"{name}={value}", device, quick=quick)


def _at(sizes: Sizes, point: str, device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    config = RunConfig(
        batch=sizes.batch, pair_batch=sizes.pair_batch, every=1, learning_rate=1e-4, schedule="constant",
        margin="0.1", precision="fp32", device=device.type,
    )  # fmt: skip
    with numerics(config, device):
        blocks: dict[str, Block] = {}
        for method in ("erm", "ipg"):
            materials = made_up(sizes, guided=method == "ipg")
            blocks[f"{point} {method}"] = iterations(config.with_changes(method=method), materials, device)
        for block in blocks.values():
            block(4 if device.type == "cpu" else 40)
        steps = 4 if quick else steps_for(blocks[f"{point} erm"], device, seconds=LEAST_SECONDS)
        work = {case: partial(per_step, block, steps, device) for case, block in blocks.items()}
        times = take_turns(work, 1 if quick else 5)
    guided = f"{point} ipg"
    ideal = 1 + 2 * sizes.pair_batch / sizes.batch
    baselines = {guided: f"{point} erm"}
    yield from compare("growth", times, unit="ms", baselines=baselines, ideals={guided: ideal})


def made_up(sizes: Sizes, *, guided: bool) -> Materials:
    """Random images, pairs and a network of the given sizes."""
    generator = torch.Generator().manual_seed(0)

    def noise(count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, 2, sizes.side, sizes.side), generator=generator, dtype=torch.uint8)

    def labels(count: int) -> torch.Tensor:
        return torch.randint(0, sizes.classes, (count,), generator=generator)

    count = 2 * sizes.batch
    zeros = torch.zeros(count, dtype=torch.int64)
    table = ImageTable(
        name="noise",
        images=noise(count),
        label=labels(count),
        attribute=zeros,
        split=zeros,
        environment=zeros,
        content=zeros,
        splits=("train",),
        classes=tuple(map(str, range(sizes.classes))),
        attributes=("none",),
    )
    pairs = None
    if guided:
        n = sizes.pairs
        pairs = PairSet(noise(n), noise(n), labels(n), torch.zeros(n, 2, dtype=torch.int64), "train", "noise")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = ConvNet(2, sizes.classes, widths=(16, 32, 32, sizes.features), strides=(1, 2, 1, 2))
    return Materials(table, model, pairs)
