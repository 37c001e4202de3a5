"""What training costs: seconds of trials over those of ERM, and the steps that `ipg bench` has measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipg.experiments.arms import is_timed
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.store import read_rows
from ipg.experiments.tables.text import markdown, short

__all__ = ["step_table", "with_cost"]


def with_cost(measured: Sequence[Measured]) -> list[Measured]:
    """The same with the metric `cost`: seconds over the median seconds of ERM run alike (see `_alike`).

    Compiling and capturing are left out, and trials that had much of either have no cost: they began a process, which
    loads libraries and tries algorithms besides. Nor have those that shared their GPU.
    """
    plain: dict[tuple[Any, ...], list[float]] = {}
    for found in measured:
        for row in found.rows:
            if row["method"] == "erm" and _counts(row):
                plain.setdefault(_alike(row), []).append(_trained(row))

    def priced(row: Mapping[str, Any]) -> dict[str, Any]:
        known = plain.get(_alike(row))
        cost = _trained(row) / statistics.median(known) if known and _counts(row) else None
        return {**row, "metrics": {**row["metrics"], "cost": cost}}

    return [replace(found, rows=tuple(priced(row) for row in found.rows)) for found in measured]


def _alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What trials have to share for their seconds to be compared: hardware, data, engine, and how often they evaluate.

    Some evaluate the split that they report after every epoch, others leave gaps in its curve.
    """
    return row["hardware"], row["dataset"], row["config"].get("engine"), None in row.get("curve", ())


COLD_SECONDS = 3.0
"""Of preparing, above which a trial was the first of its kind in a process."""


def _counts(row: Mapping[str, Any]) -> bool:
    """Whether a trial's seconds tell what it costs: it had the GPU to itself, and did not begin a process."""
    return is_timed(row) and float(row.get("preparing_seconds") or 0.0) <= COLD_SECONDS


def _trained(row: Mapping[str, Any]) -> float:
    """Seconds of a trial without those of preparing its step."""
    return float(row["seconds"]) - float(row.get("preparing_seconds") or 0.0)


STEPS = ("steps", "gpu", "pretrained")
"""Benchmarks of single iterations; those of GPUs are captured, in bf16, and compiled unless networks are pretrained."""


def step_table(results: Path) -> str | None:
    """The last measured time of a step of each case with its ratio to ERM's, and the paper's estimate of that ratio."""
    rows = [row for row in read_rows(results / "speed.jsonl") if row["benchmark"] in STEPS and row["ideal"]]
    latest = {(row["hardware"], row["case"], row["unit"]): row for row in rows}
    lines = [
        [case, hardware, f"{short(row['value'])} {unit}", f"{row['ratio']:.2f}", f"{row['ideal']:.3g}"]
        for (hardware, case, unit), row in latest.items()
    ]
    return markdown(["step", "hardware", "median", "over ERM", "paper's estimate"], lines, text=2) if lines else None
