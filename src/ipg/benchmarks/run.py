"""The benchmarks by name, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from ipg.benchmarks import distances, evaluation, gpu, growth, loading, loops, pretrained, startup, steps, threads
from ipg.benchmarks.measure import Measurement
from ipg.benchmarks.rows import Row, row

__all__ = ["BENCHMARKS", "chosen", "place", "run"]

BENCHMARKS: dict[str, Callable[..., Iterable[Measurement]]] = {
    "distances": distances.measure,
    "steps": steps.measure,
    "loops": loops.measure,
    "growth": growth.measure,
    "gpu": gpu.measure,
    "pretrained": pretrained.measure,
    "loading": loading.measure,
    "evaluation": evaluation.measure,
    "startup": startup.measure,
    "threads": threads.measure,
}
"""Each takes a device and `quick`, and yields measurements as they are made."""


def chosen(names: Iterable[str] | None) -> list[str]:
    """The names asked for, or all; a ValueError lists those there are."""
    names = list(names or BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise ValueError(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    return names


def place(name: str, device: torch.device) -> torch.device:
    """The device that a benchmark says something of."""
    return torch.device("cpu") if name in ("startup", "threads") else device


def run(name: str, device: torch.device, *, quick: bool = False) -> Iterator[Row]:
    """Run one benchmark; yields a row a measurement."""
    for found in BENCHMARKS[name](device, quick=quick):
        yield row(found, place(name, device))
