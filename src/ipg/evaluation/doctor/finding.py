"""A finding, and what several of them say and go by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ipg.evaluation.doctor.log import RunLog

__all__ = [
    "AGREES", "DISAGREES", "FALLS", "Check", "Finding", "Severity", "falls", "longer", "may_correct_more", "percent",
    "shortcut_remedy",
]  # fmt: skip

FALLS = 0.05
"""Share by which a value must fall to have fallen."""

AGREES, DISAGREES = 0.02, 0.10
"""Shares of disagreeing pairs that count as (nearly) none and as many."""

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    name: str
    severity: Severity
    meaning: str
    """One sentence, with the numbers."""
    remedy: str
    """One sentence."""


Check = Callable[[RunLog], Finding | None]


def longer(log: RunLog) -> str:
    """How to train longer: the folder of a finished run is not gone on with; one that is not finished has time left."""
    if log.unfinished:
        return f"let it run to its end ({log.epochs} of {log.config.get('epochs', 'its')} epochs are done)"
    return (
        f"train longer (more --epochs than {log.config.get('epochs', 'these')}, or --from this run's folder to go on "
        f"from its network; both with another --output)"
    )


def may_correct_more(log: RunLog) -> bool:
    """Whether some iterations went without a correction."""
    return log.config.get("every") != 1


def shortcut_remedy(log: RunLog) -> str:
    """What to do about a network that leans on the shortcut."""
    if log.guided:
        often = "correct more often (--every 1), " if may_correct_more(log) else ""
        return f"Use more pairs, {often}lower alpha, or {longer(log)}."
    return "Train with --method ipg, which pairs guide."


def falls(values: Sequence[float]) -> bool:
    """Whether the last value lies clearly below the first; of fewer than two nothing speaks against it."""
    return len(values) < 2 or values[-1] < (1 - FALLS) * values[0]


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"
