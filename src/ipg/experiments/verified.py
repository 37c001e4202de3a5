"""Which methods are verified: the figures of their own papers (`ipg/methods/published.toml`) against rows."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ipg.experiments.arms import Row, Spread, spread
from ipg.experiments.tables.rows import trial_rows

__all__ = ["Claim", "Claims", "Verdict", "claims", "result_rows", "verdict"]

SHARED = {"continuous": " (rows of IPG, which with tau 0 is the same algorithm, among them)"}
"""Methods that rows of others tell of, in words."""


@dataclass(frozen=True)
class Claim:
    """A figure that a paper gives of its own method, in percent; see `published.toml`."""

    method: str
    datasets: Sequence[str]
    protocol: str
    mean: float
    spread: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None

    def __str__(self) -> str:
        return _number(self.mean, self.spread)


@dataclass(frozen=True)
class Claims:
    """All figures, and how near rows have to come."""

    tolerance: float
    seeds: int
    figures: Sequence[Claim]
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By method, why it has no figure that can be made again here, or no rows."""


@dataclass(frozen=True)
class Verdict:
    """How a method stands, and why."""

    state: Literal["verified", "unverified", "unknown"]
    reason: str


def claims() -> Claims:
    """What `published.toml` holds."""
    content = tomllib.loads(resources.files("ipg.methods").joinpath("published.toml").read_text(encoding="utf-8"))
    figures = [Claim(**values) for values in content["figure"]]
    return Claims(content["tolerance"], content["seeds"], figures, content["reasons"])


def result_rows(folder: Path) -> list[Row] | None:
    """The rows of all studies in a folder of results; None where it holds none.

    Raises:
        ProvenanceError: a row does not say where it comes from.
        ValueError: a row is no row of a trial.
    """
    files = sorted(folder.glob("*/trials.jsonl"))
    return [row for file in files for row in trial_rows(file, optional=("last_metrics",))] if files else None


def verdict(method: str, known: Claims, rows: Sequence[Row] | None) -> Verdict:
    """Whether rows make every figure of `method` again; `unknown` where no rows are at hand."""
    figures = [figure for figure in known.figures if figure.method == method]
    why = known.reasons.get(method)
    if not figures:
        return Verdict("unverified", why or "no figure of its paper is listed to compare rows with")
    if rows is None:
        published = ", ".join(str(figure) for figure in figures)
        return Verdict("unknown", f"rows not at hand, published {published}; give their folder as --results")
    checked = [_check(figure, known, rows) for figure in figures]
    state: Literal["verified", "unverified"] = "verified" if all(met for met, _ in checked) else "unverified"
    told = [reason for _, reason in checked]
    return Verdict(state, "; ".join([why, *told] if why and state == "unverified" else told))


def _check(figure: Claim, known: Claims, rows: Iterable[Row]) -> tuple[bool, str]:
    """Whether rows meet one figure, and what they say."""
    found = _measured(figure, rows)
    where = figure.datasets[0] if len(figure.datasets) == 1 else f"mean of {', '.join(figure.datasets)}"
    if found is None:
        return False, f"no rows of protocol {figure.protocol} on {where}, published {figure}"
    said = (
        f"{_number(100 * found.mean, found.deviation and 100 * found.deviation)} with {found.count} seeds on {where}"
        f"{SHARED.get(figure.method, '')}, "
    )
    if found.count < known.seeds:
        return False, f"{said}published {figure}: {known.seeds} seeds are needed"
    met, how = _nearness(found, figure.mean, max(known.tolerance, figure.spread or 0.0))
    return met, f"{said}published {figure}: {how}{f' ({figure.note})' if figure.note else ''}"


def _nearness(found: Spread, mean: float, width: float) -> tuple[bool, str]:
    """Whether rows lie within `width` points of a figure and are sure enough to say so, and that in words."""
    if abs(100 * found.mean - mean) > width:
        return False, f"more than {width:.1f} points away"
    error = 100 * (found.deviation or 0.0) / math.sqrt(found.count)
    if error > width:
        return False, f"within {width:.1f} points, but the mean has a standard error of {error:.1f}: too much to count"
    return True, f"within {width:.1f} points"


def _measured(figure: Claim, rows: Iterable[Row]) -> Spread | None:
    """Over the seeds that all data sets of the figure have, the mean over the data sets; None without such seeds.

    Of several rows of a seed, by other precisions or engines, the earliest counts, as in the tables.
    """
    accuracy: dict[str, dict[int, float]] = {dataset: {} for dataset in figure.datasets}
    for row in sorted(rows, key=lambda row: str(row.get("date", ""))):
        same = _is_of(row, figure.method) and (row["protocol"], row["split"]) == (figure.protocol, "test")
        known = row["metrics"].get("average") is not None  # or the run broke off before there was a network
        if same and known and row["dataset"] in accuracy and figure.config.items() <= row["config"].items():
            accuracy[row["dataset"]].setdefault(row["seed"], row["metrics"]["average"])
    seeds = set.intersection(*(set(values) for values in accuracy.values()))
    means = (fmean(values[seed] for values in accuracy.values()) for seed in sorted(seeds))
    return spread(means) if seeds else None


def _is_of(row: Row, method: str) -> bool:
    """Whether a row tells of a method: one of IPG with tau 0 and `>=` also of continuous correction."""
    if method == "continuous" and row["method"] == "ipg":
        return row["config"].get("tau") == 0 and not row["config"].get("strict", False)
    return bool(row["method"] == method)


def _number(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")
