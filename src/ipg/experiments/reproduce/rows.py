"""What has been measured of a reproduction: rows of any study count where they tell of the same run.

Of a reproduction that stands `alone`, rows of its own study alone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipg.config import RunConfig
from ipg.data.errors import DataError
from ipg.experiments.arms import Row, Spread, same_run, spread, went_wrong
from ipg.experiments.reproduce.plan import Cell, Reproduction, shared
from ipg.experiments.study import Trial
from ipg.experiments.tables.rows import trial_rows

__all__ = [
    "Measured", "Missing", "all_rows", "beside", "data_obstacle", "measure", "missing", "obstacle", "without_row",
]  # fmt: skip

OPTIONAL = ("last_metrics",)
"""What rows of a kind of their own do without."""


@dataclass(frozen=True)
class Measured:
    """A cell and the rows there are of it, by seed."""

    cell: Cell
    rows: tuple[Row, ...]

    @property
    def seeds(self) -> list[list[Row]]:
        """The rows of every seed that has all of its own: one, or one a data set."""
        asked = Counter(trial.seed for trial in self.cell.trials)
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["seed"], []).append(row)
        return [rows for seed, rows in found.items() if len(rows) == asked[seed]]

    def values(self, metric: str, *, last: bool = False) -> list[float]:
        """The metric of every seed at the selected epoch or at the last, over several data sets their mean.

        An empty list if any row lacks the metric; for `cost`, the seeds whose rows have it.
        """
        place = "last_metrics" if last else "metrics"
        values = [[row.get(place, {}).get(metric) for row in rows] for rows in self.seeds]
        known = [statistics.fmean(of_seed) for of_seed in values if None not in of_seed]
        return known if metric == "cost" or len(known) == len(values) else []

    def spread(self, metric: str, *, last: bool = False) -> Spread | None:
        """Mean and deviation over the seeds; None where `values` has none."""
        values = self.values(metric, last=last)
        return spread(values) if values else None

    @property
    def collapsed(self) -> int:
        """Seeds that predict one class for every image, or broke off."""
        return sum(any(map(went_wrong, rows)) for rows in self.seeds)


def all_rows(results: Path) -> list[Row]:
    """The rows of every study in `results` that tell of test images.

    Raises:
        ProvenanceError: a row does not say where it comes from.
        ValueError: a row is no row of a trial.
    """
    files = sorted(results.glob("*/trials.jsonl"))
    rows = (row for file in files for row in trial_rows(file, optional=OPTIONAL))
    return [row for row in rows if row["split"] == "test"]


def measure(reproduction: Reproduction, rows: Iterable[Row]) -> list[Measured]:
    """Every cell with its rows. Of several rows of one run the earliest counts: no later one can better a figure."""
    known = _Known(reproduction, rows)
    found = []
    for cell in reproduction.cells:
        own = map(known.row_of, cell.trials)
        found.append(Measured(cell, tuple(row for row in own if row is not None)))
    return found


class _Known:
    """The rows that count for a reproduction."""

    def __init__(self, reproduction: Reproduction, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, int], list[Row]] = {}
        for row in sorted(rows, key=lambda row: str(row.get("date", ""))):
            own = not reproduction.alone or row["study"] == reproduction.name
            if own and row.get("kind") == reproduction.row_kind:
                self._rows.setdefault((row["dataset"], row["seed"]), []).append(row)

    def row_of(self, trial: Trial) -> Row | None:
        """The earliest row of the same run."""
        rows = self._rows.get((trial.dataset, trial.seed), ())
        return next((row for row in rows if same_run(row, trial)), None)


@dataclass(frozen=True)
class Missing:
    """What is left to run, and what cannot be run here."""

    trials: tuple[Trial, ...]
    obstacles: Mapping[str, str]
    """Why, by the key of the trial."""


def missing(
    reproduction: Reproduction,
    rows: Iterable[Row],
    data_paths: Mapping[str, str],
    trials_asked: Sequence[Trial] | None = None,
) -> Missing:
    """The trials without a row, of those asked for or of all, apart from those whose files are not there.

    They come seed by seed, so that a run that is interrupted leaves whole tables of fewer seeds.
    """
    trials: list[Trial] = []
    obstacles: dict[str, str] = {}
    asked: dict[str, str | None] = {}
    asked_for = reproduction.trials if trials_asked is None else trials_asked
    for trial in sorted(without_row(reproduction, rows, asked_for), key=lambda trial: trial.seed):
        path = data_paths.get(trial.dataset, data_paths.get(""))
        if trial.dataset not in asked:
            asked[trial.dataset] = data_obstacle(trial.dataset, path)
        why = asked[trial.dataset] or obstacle(trial.config, path)
        if why is None:
            trials.append(trial)
        else:
            obstacles[trial.key] = why
    return Missing(tuple(trials), obstacles)


def without_row(reproduction: Reproduction, rows: Iterable[Row], trials: Iterable[Trial]) -> list[Trial]:
    """Those of `trials` that have not been run."""
    known = _Known(reproduction, rows)
    return [trial for trial in trials if known.row_of(trial) is None]


def obstacle(config: RunConfig, path: str | None) -> str | None:
    """The file that a run needs beside its data and that is not there, and what it is; None where all are."""
    for file in (config.weights, config.pairs, config.masks):
        if not isinstance(file, str) or file == "pretrained":
            continue
        if beside(file, path) is None:
            what = shared()["files"].get(file)
            return f"there is no {file} beside the data" + (f": it holds {what}" if what else "")
    return None


def beside(file: str, path: str | None) -> Path | None:
    """A file as it is named, or else as it is named beside the data; None where it is nowhere."""
    places = [Path(file), *([Path(path) / file] if path else [])]
    return next((place for place in places if place.exists()), None)


def data_obstacle(dataset: str, path: str | None) -> str | None:
    """What is wrong with the files of a data set; None where they can be read."""
    from ipg.data import mnist
    from ipg.data.load import list_files

    try:
        if dataset.startswith("colored_mnist"):
            mnist.read(path)
        else:
            list_files(dataset, path=path)
    except DataError as error:
        return str(error)
    return None
