"""What several seeds say of a method, and two methods of each other over the same seeds.

*Spread*: mean, standard deviation (n − 1) and the percentile bootstrap interval of the mean (Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 13): seeds drawn with replacement, always the same draws. Few seeds give
intervals that are too narrow: of normal values, one of nominally 95 % holds the true mean 83 times in a hundred with
five seeds, 90 times with ten.

*Paired*: the same of the differences seed by seed, and the sign-flip permutation test. Were the methods alike, the sign
of each difference would be a coin's; p is the share of all 2^n signs whose mean lies at least as far from zero as the
one measured. So p is never below 2 / 2^n: 0.25 with three seeds, 0.0625 with five.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ipg.evaluation.statistics import CONFIDENCE, Interval

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RESAMPLES", "Paired", "Spread", "bootstrap", "paired", "sign_flip", "spread"]

RESAMPLES = 10_000
"""Draws of the bootstrap, and of the permutation test where all signs are too many."""
MOST_EXACT = 16
"""Up to so many differences all 2^n signs are tried."""
SEED = 20260101


@dataclass(frozen=True)
class Spread:
    """Mean of n values, their standard deviation (n − 1) and the interval of the mean; a single value has neither."""

    mean: float
    deviation: float | None
    count: int
    interval: Interval | None = None


@dataclass(frozen=True)
class Paired:
    """The first method less the second, over the seeds that both have."""

    difference: Spread
    values: tuple[float, ...]
    """A difference a seed."""
    p: float | None
    """Of the sign-flip test, two-sided; None with a single seed."""


def spread(values: Iterable[float]) -> Spread:
    """Mean, standard deviation and bootstrap interval of `values`, of which there is at least one."""
    known = list(values)
    if len(known) < 2:
        return Spread(statistics.fmean(known), None, len(known))
    return Spread(statistics.fmean(known), statistics.stdev(known), len(known), bootstrap(known))


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """`first` less `second`, seed by seed in the same order.

    Raises:
        ValueError: they are not of the same seeds, or of none.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} values make no pairs; expected one of each a seed")
    values = tuple(a - b for a, b in zip(first, second, strict=True))
    return Paired(spread(values), values, sign_flip(values) if len(values) > 1 else None)


def bootstrap(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """The percentile interval of the mean of `values`; equal values give equal intervals."""
    import numpy as np

    if len(values) < 2:
        raise ValueError(f"{len(values)} value has no spread to draw from; expected two or more")
    means = np.asarray(values, dtype=np.float64)[_draws(len(values))].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def sign_flip(differences: Sequence[float]) -> float:
    """How often chance signs put the mean of `differences` at least as far from zero as it is.

    Exact up to 16 differences; of more, the share among seeded draws, the measured signs counted among them.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    signs = _signs(len(values))
    sums = np.abs(signs @ values)
    reached = abs(math.fsum(differences)) - 1e-12 * float(np.abs(values).sum())  # sums differ by rounding alone
    hits, tried = int((sums >= reached).sum()), len(signs)
    return hits / tried if len(values) <= MOST_EXACT else (hits + 1) / (tried + 1)


@cache
def _draws(count: int) -> np.ndarray[Any, Any]:
    """Which of `count` values each resample takes, (RESAMPLES, count)."""
    import numpy as np

    shares = np.random.Generator(np.random.PCG64(SEED)).random((RESAMPLES, count))
    return (shares * count).astype(np.int64)


@cache
def _signs(count: int) -> np.ndarray[Any, Any]:
    """All signs of `count` differences, (2^count, count), or RESAMPLES draws of them."""
    import numpy as np

    if count > MOST_EXACT:
        return np.where(np.random.Generator(np.random.PCG64(SEED)).random((RESAMPLES, count)) < 0.5, -1.0, 1.0)
    return 1.0 - 2.0 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
