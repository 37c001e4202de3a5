"""What training costs: seconds of trials over those of ERM, and the steps that `ipg bench` has measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.store import read_rows
from ipg.experiments.tables.text import markdown, short

__all__ = ["step_table", "with_cost"]


def with_cost(measured: Sequence[Measured]) -> list[Measured]:
    """The same with the metric `cost`: seconds over the mean seconds of ERM on the same hardware and data."""
    plain: dict[tuple[str, str], list[float]] = {}
    for found in measured:
        for row in found.rows:
            if row["method"] == "erm":
                plain.setdefault((row["hardware"], row["dataset"]), []).append(row["seconds"])

    def priced(row: Mapping[str, Any]) -> dict[str, Any]:
        known = plain.get((row["hardware"], row["dataset"]))
        cost = row["seconds"] / statistics.fmean(known) if known else None
        return {**row, "metrics": {**row["metrics"], "cost": cost}}

    return [replace(found, rows=tuple(priced(row) for row in found.rows)) for found in measured]


def step_table(results: Path) -> str | None:
    """The last measured time of a step of each case with its ratio to ERM's, and the paper's estimate of that ratio."""
    rows = [row for row in read_rows(results / "speed.jsonl") if row["benchmark"] == "steps"]
    latest = {(row["hardware"], row["case"], row["unit"]): row for row in rows if row["ratio"] is not None}
    lines = [
        [case, hardware, f"{short(row['value'])} {unit}", f"{row['ratio']:.2f}", f"{row['ideal']:.3g}"]
        for (hardware, case, unit), row in latest.items()
        if row["ideal"]
    ]
    return markdown(["step", "hardware", "median", "over ERM", "paper's estimate"], lines, text=2) if lines else None
