"""What happens once the condition is met: the paper's remarks on stability, measured on embedded images.

A small network is guided for some hundred iterations at one threshold τ and floor ε. Counted are the iterations in
which the condition is violated; after it was met for the first time the *excursions*, runs of violated iterations until
it is met again; and how often the clip and its floor act among the iterations in which it is met.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.guidance import Guidance
from ipg.pairs.pairset import PairSampler
from ipg.seeds import derive_seed
from ipg.training.materials import gather

__all__ = ["Stability", "excursions", "observe"]

RATE, BATCH = 3e-3, 128


@dataclass(frozen=True)
class Stability:
    """One guided run, an entry an iteration."""

    tau: float
    floor: float
    disagreement: tuple[float, ...]
    violated: tuple[bool, ...]
    clipped: tuple[bool, ...]
    floored: tuple[bool, ...]

    @property
    def violated_share(self) -> float:
        """Share of all iterations."""
        return sum(self.violated) / len(self.violated)

    @property
    def excursions(self) -> list[int]:
        """Lengths of those after the condition was met for the first time."""
        return excursions(self.violated)

    @property
    def met(self) -> int:
        """Iterations in which the condition was met."""
        return len(self.violated) - sum(self.violated)


def excursions(violated: tuple[bool, ...]) -> list[int]:
    """Lengths of the runs of violated iterations that follow the first one that is not."""
    runs = [(flag, len(list(run))) for flag, run in itertools.groupby(violated)]
    begun = list(itertools.dropwhile(lambda run: run[0], runs))
    return [length for flag, length in begun if flag]


def observe(tau: float, floor: float, *, seed: int, steps: int) -> Stability:
    """Guide the small network on coloured fashion with noisy labels for `steps` iterations."""
    config = RunConfig(data="colored_fashion_noisy", pairs=124, held_out_pairs=0, seed=seed)
    materials = gather(config)
    model, table = materials.model, materials.table.part("train")
    if materials.pairs is None:
        raise ValueError("there are no pairs to guide by")
    sampler = PairSampler(materials.pairs, 32, seed=derive_seed(seed, "pair batches"))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    guide = Guidance(model, optimizer, alpha=0.1, tau=tau, margin="0.5x", floor=floor)
    told = []
    for rows in _batches(len(table), steps, seed):
        images, labels = table.images[rows].float() / 255, table.label[rows]

        def loss(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
            return F.cross_entropy(model(images), labels)

        told.append(guide.step(loss, sampler).numbers())
    return Stability(
        tau,
        floor,
        tuple(entry["disagreement"] for entry in told),
        *(tuple(bool(entry[name]) for entry in told) for name in ("violated", "clipped", "floored")),
    )


def _batches(count: int, steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Rows of `steps` batches, each pass in a new order."""
    random = torch.Generator().manual_seed(derive_seed(seed, "order"))
    done = 0
    while True:
        for rows in torch.split(torch.randperm(count, generator=random), BATCH):
            if done == steps:
                return
            done += 1
            yield rows
