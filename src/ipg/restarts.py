"""A run that collapses begins again, each time with half the learning rate."""

from __future__ import annotations

import math

__all__ = ["rate_after"]


def rate_after(rate: float, restarts: int) -> float:
    """The learning rate of a run that was to have `rate` and has begun again so often."""
    return math.ldexp(rate, -restarts)
