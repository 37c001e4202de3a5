"""What the rows of a comparison say: spreads over seeds, differences seed by seed, and time against plain training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipg.evaluation.doctor.finding import DISAGREES
from ipg.evaluation.groups import guesses
from ipg.evaluation.spread import Paired, Spread, paired, spread
from ipg.experiments.arms import broke_off, collapsed, is_timed, training_seconds, unmeasured
from ipg.experiments.compare import Facts
from ipg.report.views import number
from ipg.words import number_of

__all__ = ["PLAIN", "Comparison", "MethodRows", "series_of"]

Row = Mapping[str, Any]
PLAIN = "erm"
"""The method that time is measured against, and differences where it is compared."""


@dataclass(frozen=True)
class MethodRows:
    """One method: the rows there are of it, and why others are missing."""

    method: str
    name: str
    series: str
    rows: Mapping[int, Row]
    """By seed."""
    failures: Mapping[int, str]
    """Why, in a line, by seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All of its own, those at their defaults, too."""

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed, of the seeds that have it; `groups/NAME` is the accuracy of a group."""
        found = {seed: _metric(row, metric) for seed, row in self.rows.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, metric: str) -> Spread | None:
        """Of a metric over the seeds; None where no seed has it."""
        values = self.values(metric).values()
        return spread(values) if values else None

    @property
    def collapsed(self) -> int:
        """How many seeds ended up with one class for every image."""
        return sum(collapsed(row["metrics"]["groups"]) for row in self.rows.values())

    @property
    def mark(self) -> str:
        """What has to stand beside its figures: that runs ended up with one class, whose pairs agree for nothing."""
        if not self.collapsed:
            return ""
        return f"one class in {self.collapsed} of {number_of(len(self.rows), 'run')}"

    @property
    def broke_off(self) -> int:
        """How many runs broke off."""
        return sum(map(broke_off, self.rows.values()))

    @property
    def restarted(self) -> int:
        """How many runs collapsed, began again with a lower learning rate, and ended well."""
        return sum("restarted" in row and not broke_off(row) for row in self.rows.values())

    @property
    def unmeasured(self) -> int:
        """How many of these left no network to measure."""
        return sum(map(unmeasured, self.rows.values()))


@dataclass(frozen=True)
class Comparison:
    """Several methods with the same seeds on the same data."""

    facts: Facts
    methods: Sequence[MethodRows]
    seeds: Sequence[int]
    selection: str
    given: Mapping[str, Any]
    """Settings that are not the defaults, the methods' own options as `METHOD.NAME` among them."""
    settings: Mapping[str, Any]
    """All settings that the methods share."""
    workers: int | None
    """Processes that trained at once on this machine; None on a cluster."""
    command: str

    @property
    def reference(self) -> MethodRows:
        """What others are compared with: plain training, else the first method."""
        return min(self.methods, key=lambda method: method.method != PLAIN)

    @property
    def others(self) -> list[MethodRows]:
        """All methods but the reference."""
        return [method for method in self.methods if method is not self.reference]

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for method in self.methods for row in method.rows.values()]

    def against(self, method: MethodRows, metric: str) -> Paired | None:
        """`method` less the reference over the seeds that both have; None where there are none."""
        mine, theirs = method.values(metric), self.reference.values(metric)
        common = [seed for seed in self.seeds if seed in mine and seed in theirs]
        if not common:
            return None
        return paired([mine[seed] for seed in common], [theirs[seed] for seed in common])

    def same_answers(self, method: MethodRows) -> bool:
        """Whether `method` predicts just what the reference does, with every seed that both have."""
        common = method.rows.keys() & self.reference.rows.keys()
        answers = "predictions"
        return bool(common) and all(method.rows[s][answers] == self.reference.rows[s][answers] for s in common)

    def agrees_idly(self, method: MethodRows) -> int:
        """How many runs agree on pairs and yet only guess; those that give one class alone are not among them."""
        told = [row["metrics"] for row in method.rows.values() if not collapsed(row["metrics"]["groups"])]
        agree = [metrics for metrics in told if _of_pairs(metrics) < DISAGREES]
        return sum(guesses(metrics, len(self.facts.classes)) for metrics in agree)

    def follows_pairs(self, method: MethodRows) -> int:
        """How many runs are right more often than chance and yet answer by what pairs change, which nearly all tell.

        Their average is that of the shortcut in the test images, be it followed or taken the other way round.
        """
        chance = 1 / len(self.facts.classes)
        told = [row["metrics"] for row in method.rows.values()]
        followed = [metrics for metrics in told if _of_pairs(metrics) > 1 - DISAGREES]
        return sum((number(metrics.get("average")) or 0) > chance for metrics in followed)

    def times(self, method: MethodRows) -> Spread | None:
        """How many times as long as plain training it took with the same seed; None without that.

        Where trials are warm (see `training_seconds`) those count alone: the first of a process takes longer.
        """
        plain = next((each.rows for each in self.methods if each.method == PLAIN), {})
        both = [(row, plain[seed]) for seed, row in method.rows.items() if seed in plain]
        for seconds in (training_seconds, _taken):
            found = [(seconds(mine), seconds(theirs)) for mine, theirs in both]
            if ratios := [mine / theirs for mine, theirs in found if mine is not None and theirs]:
                return spread(ratios)
        return None


def _taken(row: Row) -> float | None:
    """All seconds of a trial that had its GPU to itself."""
    return float(row["seconds"]) if is_timed(row) else None


def series_of(methods: Sequence[str]) -> list[str]:
    """The colour of each method: plain and guided training have theirs everywhere, others take turns."""
    own = {PLAIN: "before", "ipg": "after"}
    rest = [name for name in methods if name not in own]
    return [own.get(name) or f"other-{rest.index(name) % 6 + 1}" for name in methods]


def _of_pairs(metrics: Mapping[str, Any]) -> float:
    """The share of held-out pairs that disagree; NaN, which is neither few nor many, where there are none."""
    found = number(metrics.get("pair_disagreement"))
    return math.nan if found is None else found


def _metric(row: Row, metric: str) -> float | None:
    if metric == "seconds":
        return number(row["seconds"])
    kind, slash, name = metric.partition("/")
    if slash:
        return number((row["metrics"][kind].get(name) or {}).get("accuracy"))
    return number(row["metrics"].get(metric))
