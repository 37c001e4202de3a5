"""What is missing of several reproductions, run in one queue by one pool of workers.

Seed by seed, so that a run that is interrupted leaves whole tables of fewer seeds, and within a seed in the order in
which the reproductions are named. A run that several of them ask for is made once. Two kinds have a queue of their own
after that: trials in full batch, and reproductions that stand alone, whose times count: no two of their trials share a
GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipg.data.errors import DataError
from ipg.experiments.arms import Row, run_of
from ipg.experiments.attempt import RunTrial
from ipg.experiments.reproduce.place import Place
from ipg.experiments.reproduce.plan import Reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure, missing
from ipg.experiments.runner import run_study
from ipg.experiments.study import Study, Trial
from ipg.experiments.timed import run_timed
from ipg.experiments.trial import run_trial
from ipg.experiments.workers import suitable_workers
from ipg.words import listed, number_of

__all__ = ["Asked", "Left", "Run", "left_of", "rows_of", "run_missing"]

AllRows = dict[Path, list[Row]]
"""Rows that may count, by folder."""
MOST_NAMED = 3
"""So many reproductions give a queue their names."""


@dataclass(frozen=True)
class Asked:
    """A reproduction, and what is asked for of it."""

    reproduction: Reproduction
    folder: Path
    """Where its table goes."""
    results: Path
    """Where rows are that count for it."""
    trials: tuple[Trial, ...]
    """What is to be run, if it is not done."""

    @property
    def queue(self) -> tuple[bool, str]:
        """The key of the queue that this reproduction belongs to; queues run in the order of their keys."""
        return self.reproduction.alone, self.reproduction.row_kind or ""

    def runs(self) -> dict[Hashable, Trial]:
        """The trials by what they come to: those of one name are one run, whose row counts for all of them."""
        alone = self.reproduction.name if self.reproduction.alone else None
        return {(self.results, self.reproduction.row_kind, alone, run_of(trial)): trial for trial in self.trials}


@dataclass(frozen=True)
class Run:
    """What was measured of a reproduction, and how running the rest went."""

    measured: list[Measured]
    """Every cell with its rows."""
    failed: int
    left: bool
    """Whether the time was over before all was run."""


@dataclass(frozen=True)
class _Entry:
    """A trial that is to be run, and for what."""

    run: Hashable
    """See `Asked.runs`."""
    trial: Trial
    asked: Asked


@dataclass(frozen=True)
class Left:
    """What is left to run of several reproductions."""

    entries: tuple[_Entry, ...]
    """Each run once, in the order of the queue."""
    obstacles: tuple[str, ...]
    """Why a trial cannot be run here, of each that cannot."""

    def told(self) -> list[str]:
        """What cannot be run, in words."""
        return [f"not run: {number_of(count, 'trial')}, for {why}" for why, count in Counter(self.obstacles).items()]


def run_missing(asked: Sequence[Asked], place: Place) -> list[Run]:
    """Run the trials without a row that are asked for, as far as their files are there; how each reproduction stands.

    Raises:
        DataError: nothing can be run, and there is not a row.
    """
    over = False
    entries = _left(asked, place) if place.run else ()
    failed: set[Hashable] = set()
    for queue in sorted({entry.asked.queue for entry in entries}):
        if over or place.is_over:
            over = True
            break
        own = [entry for entry in entries if entry.asked.queue == queue]
        failures, over = _work_off(own, place)
        failed |= {entry.run for entry in own if entry.trial.key in failures}
    rows = rows_of(asked)
    return [_stands(one, rows[one.results], entries, failed, over=over) for one in asked]


def rows_of(asked: Iterable[Asked]) -> AllRows:
    """The rows that may count, by folder."""
    return {results: all_rows(results) for results in {one.results for one in asked}}


def left_of(asked: Sequence[Asked], rows: AllRows, data_paths: Mapping[str, str]) -> Left:
    """What has no row in `rows`, see `rows_of`, and what of it cannot be run with the data there is."""
    entries: list[_Entry] = []
    obstacles: list[str] = []
    seen: set[Hashable] = set()
    for one in asked:
        runs = {trial.key: run for run, trial in one.runs().items() if run not in seen}
        seen |= set(runs.values())
        own = [trial for trial in one.trials if trial.key in runs]
        left = missing(one.reproduction, rows[one.results], data_paths, own)
        entries += [_Entry(runs[trial.key], trial, one) for trial in left.trials]
        obstacles += left.obstacles.values()
    return Left(tuple(sorted(entries, key=lambda entry: entry.trial.seed)), tuple(obstacles))


def _left(asked: Sequence[Asked], place: Place) -> Sequence[_Entry]:
    """What is to be run; what cannot be is told."""
    rows = rows_of(asked)
    left = left_of(asked, rows, place.data_paths)
    if left.obstacles and not left.entries and not any(_any_rows(one, rows) for one in asked):
        names = _named(one.reproduction.name for one in asked)
        raise DataError(f"nothing of {names} can be run here: {left.obstacles[0]}")
    for line in left.told():
        place.say(line)
    return left.entries


def _any_rows(one: Asked, rows: AllRows) -> bool:
    return any(found.rows for found in measure(one.reproduction, rows[one.results]))


def _work_off(entries: Sequence[_Entry], place: Place) -> tuple[frozenset[str], bool]:
    """Run the trials of one queue; the keys of those that failed, and whether the time was over."""
    trials = tuple(entry.trial for entry in entries)
    alone, kind = entries[0].asked.queue
    tally = run_study(
        Study(_named(entry.asked.reproduction.name for entry in entries), trials, "test"),
        {entry.trial.study: entry.asked.results / entry.trial.study for entry in entries},
        data_path={trial.dataset: place.data_path(trial.dataset) for trial in trials},
        device=place.device,
        engine=place.engine,
        workers=_workers(place) if alone else place.workers,
        cluster=place.cluster,
        limit=place.time_left,
        run=_run_of(kind, alone=alone),
        console=place.console,
    )
    return tally.failures, place.limit is not None and tally.done + tally.failed + tally.elsewhere < len(trials)


def _workers(place: Place) -> int | None:
    """As many as are asked for, but no more than can be timed beside each other."""
    return None if place.workers is None else min(place.workers, suitable_workers(place.device))


def _run_of(kind: str, *, alone: bool) -> RunTrial:
    if kind == "dynamics":
        from ipg.experiments.reproduce.dynamics import run_dynamics

        return run_dynamics
    return run_timed if alone else run_trial


def _named(names: Iterable[str]) -> str:
    """A few reproductions by their names; of many the first ones, and how many more there are."""
    known = list(dict.fromkeys(names))
    few = MOST_NAMED - 1
    return listed(known if len(known) <= MOST_NAMED else [*known[:few], f"{len(known) - few} more"])


def _stands(one: Asked, rows: Sequence[Row], entries: Sequence[_Entry], failed: set[Hashable], *, over: bool) -> Run:
    """How a reproduction stands after the queues; a run that another one asked for before it counts for both."""
    own, keys = set(one.runs()), {row.get("key") for row in rows}
    left = {entry.run for entry in entries if entry.trial.key not in keys} - failed
    return Run(measure(one.reproduction, rows), len(own & failed), over and bool(own & left))
