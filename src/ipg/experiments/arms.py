"""What the rows of a study say: the trials of each arm, their means and spreads, and the paper's figure beside them.

Two things tell which trial a row is of:

    key         `Trial.key`, a digest of study, protocol, seed and every setting as the study states it. Exact: by it
                runners know what is done, and a table finds the rows of its study first.
    same_run    whether the row's data, method, seed and settings, as they came out, are what the trial asks for: for
                rows that another study, or the same one in other words, has made under another key, or under none.
                Reproductions, which take rows of any study, know rows by it alone.

And `run_of` tells whether two trials are one run, which is then made once.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from ipg.config import RunConfig
from ipg.evaluation.spread import Spread, spread
from ipg.experiments.study import ADDED, ON_PAIRS, Study, Trial, own_options
from ipg.restarts import rate_after

__all__ = [
    "Arm", "Figure", "Row", "Spread", "arms_of", "broke_off", "collapsed", "figure_of", "is_cold", "is_timed",
    "published", "run_of", "same_run", "spread", "training_seconds", "unmeasured", "went_wrong",
]  # fmt: skip

Row = Mapping[str, Any]

COLD_SECONDS = 1.0
"""Of preparing, above which a trial is taken for the first of its kind in a process."""

SUITED = ("mnist_cnn", "small_cnn")
"""The networks that a trial may come to which names none."""


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
    rival: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    note: str | None = None


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
    timed: tuple[Row, ...] = ()
    """Rows of the same trials run again for their seconds alone."""

    def spread(self, metric: str = "average", *, last: bool = False) -> Spread | None:
        """Of a metric over the seeds, at the selected epoch or at the last; None without rows or where it is null."""
        values = [row["last_metrics" if last else "metrics"].get(metric) for row in self.rows]
        return None if not values or None in values else spread(values)

    def setting(self, name: str) -> Any:
        """A setting of the arm; of pairs from a file its rows alone know who has built them."""
        if name == "pair_builder" and "pair_file" in self.config:
            return self.rows[0]["config"].get(name) if self.rows else None
        return self.config.get(name)

    @property
    def seconds(self) -> float | None:
        """Median seconds of a trial with a GPU to itself: the first of a process holds its start and all compiling."""
        values = [row["seconds"] for row in self.rows if is_timed(row)]
        return statistics.median(values) if values else None

    @property
    def collapsed(self) -> int:
        """How many seeds ended up with one class for every image, or broke off."""
        return sum(map(went_wrong, self.rows))

    @property
    def broke_off(self) -> int:
        """How many seeds broke off."""
        return sum(map(broke_off, self.rows))

    @property
    def begun_again(self) -> tuple[float, ...]:
        """The last learning rates of the seeds that collapsed and began again, each time with half of it."""
        begun = (row for row in self.rows if "restarted" in row)
        return tuple(rate_after(row["config"]["learning_rate"], row["restarted"]) for row in begun)

    @property
    def unmeasured(self) -> int:
        """How many of the seeds that broke off left no network to measure."""
        return sum(map(unmeasured, self.rows))


def is_timed(row: Row) -> bool:
    """Whether the row's seconds are those of its own training: no other process was at work on its GPU."""
    return int(row.get("sharing", 1)) == 1 and not row.get("others", False)


def training_seconds(row: Row) -> float | None:
    """Seconds of training, compiling and capturing apart, where they tell what a method costs; else None.

    They do not where another process was at work on the GPU, where training broke off, and where the trial was the
    first of its data in a process, which loads libraries and tries algorithms besides. Rows from before that was noted
    are known by how long they were prepared.
    """
    if is_cold(row) or broke_off(row) or not is_timed(row):
        return None
    return float(row["seconds"]) - _preparing_seconds(row)


def is_cold(row: Row) -> bool:
    """Whether the row's trial was the first of its data in its process, or took as long to prepare as such a one."""
    return bool(row.get("first", False)) or _preparing_seconds(row) > COLD_SECONDS


def _preparing_seconds(row: Row) -> float:
    return float(row.get("preparing_seconds") or 0.0)


def went_wrong(row: Row) -> bool:
    """Whether the run broke off, or gives every image the same class."""
    return broke_off(row) or collapsed(row["metrics"].get("groups") or {})


def broke_off(row: Row) -> bool:
    """Whether training was given up: it had collapsed, or its loss was no longer a number."""
    return "collapse" in row


def unmeasured(row: Row) -> bool:
    """Whether the run broke off in its first stage, before there was a network to measure."""
    return broke_off(row) and row["metrics"].get("average") is None


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

    A row belongs to a trial when it tells of the split that the study asks for and has the trial's key; of a trial
    without such a row, one that belongs to no other, of the same protocol and the same run (see `same_run`).

    Raises:
        ValueError: two rows are of the same trial.
    """
    trials: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in study.trials:
        trials.setdefault((trial.dataset, trial.method, trial.protocol, repr(trial.stated)), []).append(trial)
    known = _rows_by_key(study, rows)
    arms = []
    for same in trials.values():
        first = same[0]
        found = [known[trial.key] for trial in same if trial.key in known]
        seeds = tuple(trial.seed for trial in same)
        options = dict(first.config.options)
        settings = dict(first.stated)
        if "pair_file" in settings:
            settings["pairs"] = found[0]["config"]["pairs"] if found else settings["pair_file"]
        arms.append(
            Arm(study.name, first.dataset, first.method, first.protocol, settings, options, seeds, tuple(found))
        )
    taken = {id(row) for row in known.values()}
    return arms, [row for row in rows if id(row) not in taken]


def _rows_by_key(study: Study, rows: Sequence[Row]) -> dict[str, Row]:
    """The row of each trial of the study that has one, by the trial's key."""
    of_split = [row for row in rows if row["split"] == study.metrics_split]
    known = {trial.key for trial in study.trials}
    keyed: dict[str, list[Row]] = {}
    for row in of_split:
        keyed.setdefault(row.get("key", ""), []).append(row)
    found = {trial.key: _only(trial, keyed[trial.key]) for trial in study.trials if trial.key in keyed}
    left = [row for row in of_split if row.get("key", "") not in known]
    for trial in study.trials if left else ():
        if trial.key not in found and (matching := [row for row in left if _is_of(row, trial)]):
            found[trial.key] = _only(trial, matching)
            left = [row for row in left if row is not found[trial.key]]
    return found


def _only(trial: Trial, rows: Sequence[Row]) -> Row:
    """The one row of a trial; ValueError where there are more."""
    if len(rows) > 1:
        raise ValueError(
            f"{trial.study}: {len(rows)} rows of {trial.method} ({trial.protocol}), seed {trial.seed}, with the same "
            f"settings; keep one"
        )
    return rows[0]


def _is_of(row: Row, trial: Trial) -> bool:
    return (row["method"], row["protocol"]) == (trial.method, trial.protocol) and same_run(row, trial)


def same_run(row: Row, trial: Trial) -> bool:
    """Whether `row` tells of what `trial` asks for, whatever study and protocol either was written under.

    Data, method, seed and every setting that both know have to agree, the method's own options among them, also those
    that the trial leaves at their defaults. A setting that is new since the row was written does not part them, unless
    the trial has another value than all had before (see `ADDED`; of an option, its default). What a trial leaves to
    `auto` agrees with what came of it, and a network that it does not name with those that are chosen for data;
    `every="auto"` is a pace of its own, which stays `auto`. Methods that come to IPG by their settings are IPG (see
    `_comes_to`).
    """
    if any(row[name] != getattr(trial, name) for name in ("dataset", "seed")):
        return False
    if row["method"] != trial.method and not {row["method"], trial.method} <= {"ipg", *_IPG_BY_SETTINGS}:
        return False
    made, config = _comes_to(row["method"], {**ADDED, **_usual_options(row["method"]), **row["config"]})
    method, asked = _comes_to(trial.method, trial.in_full)
    if made != method:
        return False
    return all(_agree(name, value, config[name], trial) for name, value in asked.items() if name in config)


@cache
def _usual_options(method: str) -> Mapping[str, Any]:
    """A method's own options, at their defaults."""
    return MappingProxyType(own_options(RunConfig(method=method)))


def run_of(trial: Trial) -> Hashable:
    """What tells runs apart: data, seed, and the method and settings that the trial comes to."""
    method, settings = _comes_to(trial.method, trial.in_full)
    return trial.dataset, trial.seed, method, repr(sorted(settings.items()))


OF_CORRECTIONS = frozenset(
    ("pair_batch", "alpha", "tau", "margin", "every", "floor", "distance", "strict", "jitter", "restarts")
)
"""Settings that nothing but what is done with pairs depends on."""
OF_RESCALING = frozenset(("alpha", "tau", "floor", "strict"))
"""Settings that nothing but the rescaling of the task's gradient depends on, at a pace that is fixed."""
_IPG_BY_SETTINGS = ("continuous", "ipg_ablated")


def _comes_to(method: str, settings: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The method and settings of the same run in plain words.

    Continuous correction is IPG with tau 0 and `>=`, whatever it is told; the ablated IPG with nothing ablated is IPG.
    Methods that use no pairs have none of the settings of corrections, and those that do not rescale none of that.
    """
    if method not in ON_PAIRS:
        return method, {name: value for name, value in settings.items() if name not in OF_CORRECTIONS}
    if method not in ("ipg", *_IPG_BY_SETTINGS) and settings.get("every") != "auto":
        return method, {name: value for name, value in settings.items() if name not in OF_RESCALING}
    if method == "continuous":
        return "ipg", {**settings, "method": "ipg", "tau": 0.0, "strict": False}
    if method == "ipg_ablated":
        nothing = _usual_options(method)
        if all(settings.get(name, value) == value for name, value in nothing.items()):
            return "ipg", {k: "ipg" if k == "method" else v for k, v in settings.items() if k not in nothing}
    return method, settings


def _agree(name: str, asked: Any, came: Any, trial: Trial) -> bool:
    """Whether a setting that a trial asks for, or leaves open, is what a row has."""
    if asked == "auto" and name != "every":
        return True
    if name == "model" and asked is None:
        return came in (None, *SUITED) or trial.config.start is not None  # which brings its network
    return bool(asked == came)


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
