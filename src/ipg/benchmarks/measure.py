"""How things are measured: cases take turns, and each is given as a ratio to a baseline of the same round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

__all__ = ["Measurement", "compare", "quartiles", "take_turns", "timed"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case of a benchmark."""

    benchmark: str
    case: str
    value: float
    """The median over the rounds."""
    unit: str
    baseline: str | None = None
    """The case that `ratio` is to; None where there is none."""
    ratio: float | None = None
    """The median over the rounds of this case's value over the baseline's."""
    low: float
    """The lower quartile of the value."""
    high: float
    """The upper quartile."""
    rounds: int
    ideal: float | None = None
    """The ratio that theory gives, where it gives one."""


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that `work` takes, the device's included."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def take_turns(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each case measures in each round. The cases take turns, and each round begins with another."""
    names = list(cases)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(cases[name]())
    return found


def compare(
    benchmark: str,
    values: Mapping[str, list[float]],
    *,
    unit: str,
    baselines: Mapping[str, str | tuple[str, ...]],
    ideals: Mapping[str, float] | None = None,
) -> list[Measurement]:
    """Median, quartiles and ratio of each case.

    `baselines` says which case each is compared with; one that is compared with several has a measurement for each.
    """
    measurements = []
    for case, found in values.items():
        given = baselines.get(case)
        low, high = quartiles(found)
        for baseline in given if isinstance(given, tuple) else (given,):
            measurements.append(
                Measurement(
                    benchmark=benchmark,
                    case=case,
                    value=statistics.median(found),
                    unit=unit,
                    baseline=baseline,
                    ratio=None if baseline is None else _ratio(found, values[baseline]),
                    low=low,
                    high=high,
                    rounds=len(found),
                    ideal=(ideals or {}).get(case),
                )
            )
    return measurements


def quartiles(values: list[float]) -> tuple[float, float]:
    """The lower and the upper quartile; twice the value where there is one."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _ratio(values: list[float], baseline: list[float]) -> float:
    return statistics.median(value / base for value, base in zip(values, baseline, strict=True))
