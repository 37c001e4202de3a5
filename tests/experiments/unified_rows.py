"""A small protocol, and rows as the runner writes them, for the tests of the unified protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipg.experiments.study import Trial
from ipg.experiments.unified.plan import Contender, Protocol
from ipg.training.identity import settled

DATASETS = ("colored_mnist", "waterbirds100", "waterbirds100_reverse", "celeba_subset")

PLAIN: dict[str, tuple[float, ...]] = {"learning_rate": (), "weight_decay": ()}
"""Of plain training: nothing to draw."""
SMALL = Protocol(
    dataset="bars",
    configurations=3,
    seed=100,
    rule="worst_group",
    seeds=2,
    about="Bars.",
    base={
        "model": "small_cnn",
        "epochs": 1,
        "batch": 32,
        "pairs": 8,
        "pair_batch": 4,
        "held_out_pairs": 4,
        "selection": "worst_group",
        "class_weighted": True,
        "precision": "fp32",
    },
    contenders=(
        Contender("erm", values=PLAIN),
        Contender("lff"),
        Contender("erm", {"class_weighted": False}, PLAIN),
    ),
)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and options of a configuration on one level."""
    return {**{name: value for name, value in config.items() if name != "options"}, **config.get("options", {})}


def metrics_of(average: float, worst: float | None = 0.5, mean: float = 0.5) -> dict[str, Any]:
    environments = {"0": {"accuracy": average, "count": 5}, "1": {"accuracy": 0.5, "count": 5}}
    values = {"average": average, "worst_group": worst, "group_mean": mean, "balanced": 0.8, "groups": {}}
    return {**values, "environments": environments, "pair_disagreement": 0.25}


def row_of(trial: Trial, split: str, average: float, *values: Any) -> dict[str, Any]:
    """A row of `trial` as the runner writes it."""
    metrics = metrics_of(average, *values)
    return {
        **trial.identity,
        "config": {name: value for name, value in settled(trial.config).items() if name not in ("seed", "device")},
        "split": split,
        "metrics": metrics,
        "last_metrics": metrics,
        "seconds": 1.0,
        "hardware": "a machine",
        "versions": {"torch": "9.9", "python": "3.99"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
    }
