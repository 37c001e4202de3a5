"""How far a share that was counted may be from the true one.

Wilson's interval of a share, and Newcombe's of the difference of two shares counted on different images: his method 10,
which puts two of Wilson's together. (Newcombe, "Two-sided confidence intervals for the single proportion" and "Interval
estimation for the difference between independent proportions", Statistics in Medicine 17, 1998.) Both stay sensible
where few images were counted, or all of them right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any, NamedTuple

__all__ = ["CONFIDENCE", "Interval", "at_chance", "counted", "difference", "lowest", "wilson"]

CONFIDENCE = 0.95
"""How often such an interval holds the true value."""


class Interval(NamedTuple):
    """From `low` to `high`."""

    low: float
    high: float


def wilson(hits: float, total: int, *, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the share `hits / total`; of a mean of several counts, `hits` need not be whole."""
    if not 0 <= hits <= total or total == 0:
        raise ValueError(f"{hits} of {total} is no share; expected 0 <= hits <= total and total above 0")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is out of range: expected a share between 0 and 1")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p, q = hits / total, 1 - hits / total
    middle = 2 * total * p + z**2
    reach = z * math.sqrt(z**2 + 4 * total * p * q)
    scale = 2 * (total + z**2)
    low = 0.0 if hits == 0 else (middle - reach) / scale  # exact at the ends, where rounding would leave a trace
    high = 1.0 if hits == total else (middle + reach) / scale
    return Interval(low, high)


def difference(first: tuple[int, int], second: tuple[int, int], *, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the share of `first` less that of `second`, each (hits, total) and of images of its own."""
    (low1, high1), (low2, high2) = wilson(*first, confidence=confidence), wilson(*second, confidence=confidence)
    p1, p2 = first[0] / first[1], second[0] / second[1]
    below = math.hypot(p1 - low1, high2 - p2)
    above = math.hypot(high1 - p1, p2 - low2)
    return Interval(p1 - p2 - below, p1 - p2 + above)


def at_chance(accuracy: float, classes: int, images: float) -> bool:
    """Whether an accuracy on so many images is what guessing gives, within two standard errors."""
    chance = 1 / classes
    return abs(accuracy - chance) <= 2 * math.sqrt(chance * (1 - chance) / images)


def lowest(shares: Iterable[tuple[float | None, int]]) -> int | None:
    """Which of several shares, each with its count, is the lowest; None where nothing was counted.

    Of equal ones it is the one whose interval ends lowest, then the one whose interval begins lowest: where several are
    0 that is the one of most, where several are 1 the one of fewest.
    """

    def rank(place: int) -> tuple[float, float, float]:
        share, count = known[place]
        low, high = wilson(round(share * count), count)
        return share, high, low

    known = {place: (share, count) for place, (share, count) in enumerate(shares) if share is not None and count}
    return min(known, key=rank, default=None)


def counted(hits: int, total: int) -> dict[str, Any]:
    """A share as results hold it: `share`, `low`, `high` and `count`; null where nothing was counted."""
    if total == 0:
        return {"share": None, "low": None, "high": None, "count": 0}
    return {"share": hits / total, **wilson(hits, total)._asdict(), "count": total}
