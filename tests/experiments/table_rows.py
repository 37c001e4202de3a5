"""Studies of a few arms, their rows as the runner writes them, and how to read a table, for the tests of tables."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ipg.experiments.arms import published
from ipg.experiments.study import Trial
from ipg.experiments.tables.rows import measured
from ipg.experiments.tables.short import dataset_table

DRAWS_THE_SAME = tuple(map(int, version("matplotlib").split(".")[:2])) >= (3, 11)
"""Whether figures come out as the committed ones, to the letter: earlier releases write other paths."""
STUDY = """
dataset = "colored_mnist"
seeds = 3
[base]
epochs = 2
schedule = "constant"
pair_batch = 64
margin = 0.08
selection = "training_environments"
[[arm]]
method = "erm"
protocol = "paper"
[[arm]]
method = "ipg"
protocol = "paper"
config = { pairs = 124, alpha = 0.5, every = 2 }
[[arm]]
method = "joint"
protocol = "paper"
seeds = 1
config = { pairs = 124, options = { order = "sum", loss = "alignment" } }
"""
TUNING = """
dataset = "colored_mnist"
metrics_split = "search"
seeds = [100]
[base]
pairs = 40
[[arm]]
method = "ipg"
protocol = "tuning"
config = { alpha = 0.1 }
[[arm]]
method = "ipg"
protocol = "tuning"
config = { alpha = 0.2 }
"""
TUNED = """
dataset = "colored_mnist"
seeds = 1
[base]
pairs = 40
[[arm]]
method = "ipg"
protocol = "tuned"
config = { alpha = 0.2 }
"""
PAGE = "before\n<!-- results:colored_mnist -->\nold\n<!-- /results:colored_mnist -->\nafter\n"


def metrics(average: float, worst: float) -> dict[str, Any]:
    groups = {"low, red": 1.0, "low, green": worst, "high, red": 0.5, "high, green": None}
    return {
        "average": average,
        "group_mean": 0.5,
        "worst_group": worst,
        "groups": {name: {"accuracy": share, "count": 0 if share is None else 10} for name, share in groups.items()},
        "pair_disagreement": 0.25,
    }


def row(trial: Trial, average: float, *, worst: float = 0.0, last: float = 0.5, seconds: float = 2.0) -> dict[str, Any]:
    """A row of `trial` as the runner writes it."""
    config = trial.config.flat()
    return {
        "dataset": trial.dataset,
        "method": trial.method,
        "protocol": trial.protocol,
        "seed": trial.seed,
        "config": {name: value for name, value in config.items() if name not in ("seed", "device", "data_path")},
        "split": "search" if trial.protocol == "tuning" else "test",
        "metrics": metrics(average, worst),
        "last_metrics": metrics(last, worst),
        "seconds": seconds,
        "hardware": "a machine",
        "versions": {"ipg": "1", "python": "3.99", "torch": "9.9"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
    }


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in rows), encoding="utf-8")


def arguments(project: Path, what: str) -> list[str]:
    return [what, str(project / "README.md"), "--studies", str(project / "studies")]


def cells(text: str, start: str) -> list[str]:
    """The cells of the table line that begins with `start`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def short_table(project: Path) -> str:
    return dataset_table("colored_mnist", measured(project / "results", project / "studies"), published())
