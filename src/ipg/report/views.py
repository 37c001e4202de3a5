"""Runs as a report sees them, and how it writes numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ipg.evaluation.statistics import Interval, wilson

__all__ = [
    "PairAnswers",
    "RunView",
    "group_count",
    "number",
    "percent",
    "series",
    "share_interval",
    "span",
]


@dataclass(frozen=True)
class PairAnswers:
    """What a run says of held-out pairs, counted."""

    total: int
    changed: int
    """Pairs whose two members get different answers."""
    both_right: int
    """Pairs of which both members get the right answer."""


@dataclass(frozen=True)
class RunView:
    """One training run, as a report sees it."""

    name: str
    """What the reader calls it, e.g. `Plain training (ERM)`."""
    method: str
    """Its name in `ipg.methods`, e.g. `erm`."""
    config: Mapping[str, object]
    epochs: Sequence[Mapping[str, Any]]
    """The rows of its `metrics.jsonl`."""
    result: Mapping[str, Any]
    """Its `result.json`."""
    role: Literal["before", "after", "reference"]
    """The headline compares the first `before` with the first `after`."""
    pairs: PairAnswers | None = None
    """Its answers on held-out pairs, where there are any."""
    folder: str = ""
    """Where it is kept, as short as tells it from the others; nothing where that is not known."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """On the test split at the selected epoch; where that is missing at the last one."""
        found = self.result.get("metrics") or self.result.get("last_metrics")
        if not found and self.epochs:
            found = {
                "pair_disagreement": self.epochs[-1].get("pair_disagreement"),
                **(self.epochs[-1].get("test") or {}),
            }
        return found or {}

    @property
    def disagreement(self) -> float | None:
        """Share of held-out pairs whose two members it tells apart, as it was measured after training."""
        measured = number(self.metrics.get("pair_disagreement"))
        if measured is None and self.pairs is not None:
            return self.pairs.changed / self.pairs.total
        return measured


def number(value: object) -> float | None:
    """`value` as a finite float; None for whatever is not one."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as per cent, a dash where there is none. Without digits, 99.6 does not become 100, nor 0.4 zero."""
    if value is None:
        return "–"
    if digits == 0 and round(100 * value) in (0, 100) and value not in (0, 1):
        digits = 1
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def group_count(cell: Mapping[str, Any]) -> int | None:
    """How many images a share was measured on; None where that is not known."""
    count = number(cell.get("count"))
    return None if count is None else int(count)


def share_interval(share: float | None, count: int | None) -> Interval | None:
    """The 95 % interval of a share of `count`; None where either is missing."""
    if share is None or not count or not 0 <= share <= 1:
        return None
    return wilson(round(share * count), count)


def span(interval: Interval | None) -> str:
    """An interval in per cent without the sign: `91.7–99.0`; nothing where there is none."""
    if interval is None:
        return ""
    low, high = (f"{100 * end:.1f}".replace("-", "−") for end in interval)
    return f"{low}\N{EN DASH}{high}" if not low.startswith("−") else f"{low} to {high}"


def series(runs: Sequence[RunView]) -> tuple[str, ...]:
    """The name of each run's colour: `before`, `after` for the two compared, `other-1` … for the rest."""
    names: list[str] = []
    others = 0
    for run in runs:
        if run.role != "reference" and run.role not in names:
            names.append(run.role)
        else:
            names.append(f"other-{others % 6 + 1}")
            others += 1
    return tuple(names)
