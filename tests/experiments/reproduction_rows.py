"""A small reproduction, its rows as the runner writes them, and how to read its table, for the tests of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipg.experiments.study import Trial

SMALL = """
title = "Number of pairs"
paper = "tab:pair-sensitivity"
claim = "More pairs are better."
metrics = ["average", "worst_group"]
figure = "boxes"
axes = ["pairs"]
seeds = 2
[[arm]]
name = "{pairs} pairs"
paper = "IPG, {pairs} pairs"
datasets = ["colored_mnist"]
protocol = "paper"
method = "ipg"
vary = { pairs = [40, 124] }
[[arm]]
name = "IPG, ResNet-50"
datasets = ["waterbirds100"]
protocol = "paper"
network = "resnet50"
method = "ipg"
[[quoted]]
paper = "IPG, 388 pairs"
dataset = "colored_mnist"
needs = "patience"
[quick]
seeds = 1
data = { colored_mnist = "bars" }
config = { epochs = 1, batch = 32, pairs = 8, pair_batch = 4, held_out_pairs = 4 }
vary = { pairs = [40] }
"""


def shares(average: float) -> dict[str, Any]:
    return {"average": average, "worst_group": average - 0.1, "group_mean": average, "groups": {}}


def row(trial: Trial, average: float, last: float | None = None, **changes: Any) -> dict[str, Any]:
    """A row of `trial` as the runner writes it."""
    return {
        "key": trial.key,
        "study": trial.study,
        "dataset": trial.dataset,
        "method": trial.method,
        "protocol": trial.protocol,
        "seed": trial.seed,
        "config": {name: value for name, value in trial.config.flat().items() if name not in ("seed", "data_path")},
        "split": "test",
        "metrics": shares(average),
        **({} if last is None else {"last_metrics": shares(last)}),
        "seconds": 10.0,
        "hardware": "a machine",
        "versions": {"python": "3.99", "torch": "9.9"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
        **changes,
    }


def keep(results: Path, study: str, rows: list[dict[str, Any]]) -> None:
    file = results / study / "trials.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def cells(page: str, setting: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if f"| {setting} |" in line]
    return [cell.strip() for cell in line.strip("|").split("|")]
