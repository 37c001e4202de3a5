"""What the rows of a study say: the trials of each arm, their means and spreads, and the paper's figure beside them."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ipg.evaluation.spread import Spread, spread
from ipg.experiments.study import ADDED, ELSEWHERE, Study, Trial

__all__ = ["Arm", "Figure", "Spread", "arms_of", "collapsed", "figure_of", "published", "same_run", "spread"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A published figure; see `published.toml`."""

    dataset: str
    table: str
    approach: str
    mean: float
    spread: float | None = None
    method: str | None = None
    pairs: int | None = None
    metric: str = "average"
    count: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Arm:
    """One configuration of a study: the seeds it asks for and the rows there are of them."""

    study: str
    dataset: str
    method: str
    protocol: str
    config: Mapping[str, Any]
    """All settings but the seed, flat, the method's options among them. Of pairs from a file their number, once a row
    tells it."""
    options: Mapping[str, Any]
    """The method's own options, as the study gives them."""
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]

    def spread(self, metric: str = "average", *, last: bool = False) -> Spread | None:
        """Of a metric over the seeds, at the selected epoch or at the last; None without rows or where it is null."""
        values = [row["last_metrics" if last else "metrics"].get(metric) for row in self.rows]
        return None if not values or None in values else spread(values)

    @property
    def seconds(self) -> float | None:
        """Median seconds of a trial: the first of a process holds its start and all compiling."""
        return statistics.median(row["seconds"] for row in self.rows) if self.rows else None

    @property
    def collapsed(self) -> int:
        """How many seeds ended up with one class for every image."""
        return sum(collapsed(row["metrics"]["groups"]) for row in self.rows)


def collapsed(groups: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether one class was predicted for every image, told from the accuracies of the groups ("class, attribute").

    Then every group of that class is right to the last image and every other group wrong to the last. Of two classes
    the reverse holds as well; of more it is the sign to be had without the predictions.
    """
    right: dict[str, set[float]] = {}
    for name, group in groups.items():
        if group["accuracy"] is not None:
            right.setdefault(name.rpartition(", ")[0], set()).add(group["accuracy"])
    ones = [label for label, shares in right.items() if shares == {1.0}]
    return len(ones) == 1 and all(shares == {0.0} for label, shares in right.items() if label != ones[0])


def arms_of(study: Study, rows: Sequence[Row]) -> tuple[list[Arm], list[Row]]:
    """The arms of `study` in its order, each with its rows by seed; and the rows that belong to none.

    A row belongs to a trial when it tells of the split that the study asks for, and seed, method, protocol and every
    setting that both know agree: a setting that is new since the row was written does not part them, unless the trial
    has another value than all had before (see `ADDED`). What a trial leaves to `auto` agrees with what came of it;
    `every="auto"` is a pace of its own, which stays `auto`.

    Raises:
        ValueError: two rows are of the same trial.
    """
    trials: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in study.trials:
        trials.setdefault((trial.dataset, trial.method, trial.protocol, repr(_settings(trial))), []).append(trial)
    left = list(rows)
    arms = []
    for same in trials.values():
        first = same[0]
        found = []
        for trial in same:
            matching = [row for row in left if row["split"] == study.metrics_split and _is_of(row, trial)]
            if len(matching) > 1:
                raise ValueError(
                    f"{study.name}: {len(matching)} rows of {trial.method} ({trial.protocol}), seed {trial.seed}, "
                    f"with the same settings; keep one"
                )
            found += matching
            left = [row for row in left if row not in matching]
        seeds = tuple(trial.seed for trial in same)
        options = dict(first.config.options)
        settings = _settings(first)
        if "pair_file" in settings:
            settings["pairs"] = found[0]["config"]["pairs"] if found else settings["pair_file"]
        arms.append(
            Arm(study.name, first.dataset, first.method, first.protocol, settings, options, seeds, tuple(found))
        )
    return arms, left


def _settings(trial: Trial) -> dict[str, Any]:
    values = trial.config.flat()
    if isinstance(values["pairs"], str):  # of a file, rows tell the number and the builder
        del values["pair_builder"]
        values["pair_file"] = values.pop("pairs")
    return {name: value for name, value in values.items() if name not in ("seed", *ELSEWHERE)}


def _is_of(row: Row, trial: Trial) -> bool:
    return row["protocol"] == trial.protocol and same_run(row, trial)


def same_run(row: Row, trial: Trial) -> bool:
    """Whether `row` tells of what `trial` asks for, whatever study and protocol either was written under."""
    if any(row[name] != getattr(trial, name) for name in ("dataset", "method", "seed")):
        return False
    config = {**ADDED, **row["config"]}
    stated = {name: value for name, value in _settings(trial).items() if value != "auto" or name == "every"}
    return all(config[name] == value for name, value in stated.items() if name in config)


def published() -> list[Figure]:
    """All figures of `published.toml`."""
    text = resources.files("ipg.experiments").joinpath("published.toml").read_text(encoding="utf-8")
    return [Figure(**values) for values in tomllib.loads(text)["figure"]]


def figure_of(arm: Arm, figures: Iterable[Figure], metric: str = "average") -> Figure | None:
    """The paper's figure for the method of `arm` with as many pairs, the first listed; None where there is none."""
    for figure in figures:
        same = (figure.dataset, figure.method, figure.metric) == (arm.dataset, arm.method, metric)
        if same and figure.pairs in (None, arm.config["pairs"]):
            return figure
    return None
