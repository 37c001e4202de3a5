"""What training costs: seconds of trials over those of ERM, and the steps that `ipg bench` has measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipg.experiments.arms import training_seconds
from ipg.experiments.reproduce.cells import Table
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.store import read_rows
from ipg.experiments.tables.rows import check_provenance
from ipg.experiments.tables.text import commit_text, origin, short

__all__ = ["step_table", "with_cost"]


def with_cost(measured: Sequence[Measured]) -> list[Measured]:
    """The same with the metric `cost`: seconds over the median seconds of ERM run alike (see `_alike`).

    A trial is compared with ERM of its own commit, which ran beside it; with that of others only if its commit has none
    at all. Of trials whose seconds tell of more than training (see `training_seconds`) it is None.
    """
    plain: dict[tuple[Any, ...], list[float]] = {}
    for found in measured:
        for row in found.rows:
            if row["method"] == "erm":
                seconds = training_seconds(row)
                for group in (_alike(row), (*_alike(row), row["commit"])):
                    plain.setdefault(group, []).extend([] if seconds is None else [seconds])

    def priced(row: Mapping[str, Any]) -> dict[str, Any]:
        known = plain.get((*_alike(row), row["commit"]), plain.get(_alike(row)))
        seconds = training_seconds(row)
        cost = seconds / statistics.median(known) if known and seconds is not None else None
        return {**row, "metrics": {**row["metrics"], "cost": cost}}

    return [replace(found, rows=tuple(priced(row) for row in found.rows)) for found in measured]


def _alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What trials have to share for their seconds to be compared: hardware, data, engine, and how often they evaluate.

    Some evaluate the split that they report after every epoch, others leave gaps in its curve.
    """
    return row["hardware"], row["dataset"], row["config"].get("engine"), None in row.get("curve", ())


STEPS = ("steps", "gpu", "pretrained")
"""Benchmarks of single iterations; those of GPUs are captured, in bf16, and compiled unless networks are pretrained."""


def step_table(results: Path) -> Table | None:
    """The last measured time of a step of each case with its ratio to ERM's, and the paper's estimate of that ratio.

    Raises:
        ProvenanceError: a row does not say where it comes from.
    """
    file = results / "speed.jsonl"
    rows = [row for row in read_rows(file) if row.get("benchmark") in STEPS and row.get("ideal")]
    check_provenance(rows, file)
    latest = {(row["hardware"], row["case"], row["unit"]): row for row in rows}
    if not latest:
        return None
    lines = [
        (case, hardware, f"{short(row['value'])} {unit}", f"{row['ratio']:.2f}", f"{row['ideal']:.3g}")
        for (hardware, case, unit), row in latest.items()
    ]
    records = [
        {
            "step": case,
            "median": row["value"],
            "unit": unit,
            "over ERM": row["ratio"],
            "paper's estimate": row["ideal"],
            "hardware": hardware,
            "commit": commit_text(row["commit"]).strip("`"),
        }
        for (hardware, case, unit), row in latest.items()
    ]
    return Table(
        ("step", "hardware", "median", "over ERM", "paper's estimate"),
        tuple(lines),
        (f"{origin(list(latest.values()))}.",),
        records=tuple(records),
        title="Single steps, measured by `ipg bench`",
        name="steps",
    )
