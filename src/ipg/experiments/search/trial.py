"""One trial of a search: train on data without test images, and say what the settings are worth. Needs no Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.experiments.search.objective import Objective, group_mean, readable, value_of
from ipg.experiments.study import ELSEWHERE, Trial
from ipg.guidance import CollapseError, NonFiniteError
from ipg.training.device import resolve_device
from ipg.training.folder import RunFolder, read_jsonl
from ipg.training.identity import settled
from ipg.training.listeners import Listener
from ipg.training.loop import Outcome, train
from ipg.training.materials import gather
from ipg.training.provenance import provenance

__all__ = ["WORST", "SearchTrial", "in_percent", "in_words", "limits", "run_search_trial", "trial_splits"]

WORST = 0.0
"""The value of settings with which training collapses or runs into NaN: no accuracy is below it."""
COMPARED = 5
"""A trial is given up early only after so many have been seen to their end."""
UNJUDGED = 1
"""Epochs at the beginning of a trial after which it is never given up."""


@dataclass(frozen=True)
class SearchTrial(Trial):
    """A trial of a search."""

    number: int = 0
    settings: tuple[tuple[str, Any], ...] = ()
    """What is tried, by name."""
    objective: Objective = "worst_group"
    limits: tuple[float | None, ...] = ()
    """By epoch, what the trial has to have reached; it is given up where it has not."""

    @property
    def key(self) -> str:
        """What identifies the trial: its number in the search, and a digest of all that decides its outcome."""
        return f"{self.number:04}-{super().key}"

    @property
    def title(self) -> str:
        """The trial in words."""
        return f"trial {self.number}: {in_words(dict(self.settings))}"


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings in a line: `alpha 0.31, tau 0`."""
    return ", ".join(f"{name} {f'{v:.4g}' if isinstance(v, float) else v}" for name, v in settings.items())


def in_percent(value: float | None, digits: int = 1) -> str:
    """What settings are worth, as people are told it; a dash where it was not measured."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def limits(curves: Sequence[Sequence[float]], epochs: int) -> tuple[float | None, ...]:
    """By epoch, the median of the trials that were seen to their end; nothing while these are few."""
    if len(curves) < COMPARED:
        return ()
    columns = [[curve[epoch] for curve in curves if epoch < len(curve)] for epoch in range(epochs)]
    return tuple(median(column) if column and epoch >= UNJUDGED else None for epoch, column in enumerate(columns))


def run_search_trial(
    trial: Trial,
    *,
    metrics_split: str,
    folder: Path | None = None,
    tell: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run one trial; its row says what it is worth, or how it went wrong.

    Args:
        trial: what to run, a `SearchTrial`.
        metrics_split: the split that the row reports.
        folder: where the run lives. A run found there goes on where it stopped.
        tell: is told now and then which share of the iterations is done.
    """
    if not isinstance(trial, SearchTrial):
        raise TypeError(f"expected a SearchTrial, got a {type(trial).__name__}")
    config, objective = trial.config, trial.objective
    materials = gather(config, table=readable(config))
    splits = trial_splits(materials.table, metrics_split)
    watcher = _Watcher(trial, folder, tell)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"every \* alpha", category=UserWarning)  # said once of all
            outcome = train(config, materials, folder=folder, listeners=[watcher], evaluate_on=splits)
    except (CollapseError, NonFiniteError) as error:
        rows: Sequence[Mapping[str, Any]] = watcher.rows
        ended: dict[str, Any] = {"state": "wrong", "value": WORST, "error": str(error)}
    except _GivenUpError:
        rows = watcher.rows
        ended = {"state": "pruned", "value": value_of(objective, rows[-1])}
    else:
        rows = outcome.rows
        ended = _worth(trial, outcome, metrics_split)
    return {
        **trial.identity,
        "number": trial.number,
        "config": {name: v for name, v in settled(config).items() if name not in ("seed", *ELSEWHERE)},
        "objective": objective,
        "split": metrics_split,
        **ended,
        "curve": [value_of(objective, row) for row in rows],
        "seconds": rows[-1]["seconds"] if rows else 0.0,
        **provenance(resolve_device(config.device)),
    }


def trial_splits(table: ImageTable, metrics_split: str) -> list[str]:
    """What a trial is evaluated on."""
    return list(dict.fromkeys([*({"validation"} & set(table.splits)), metrics_split]))


def _worth(trial: SearchTrial, outcome: Outcome, split: str) -> dict[str, Any]:
    """What a run that was seen to its end is worth, at the epoch that it keeps."""
    kept = next(row for row in outcome.rows if row["epoch"] == outcome.result["selected_epoch"])
    return {
        "state": "complete",
        "value": value_of(trial.objective, kept),
        "epoch": kept["epoch"],
        **({"refitted_epoch": kept["refitted"]} if "refitted" in kept else {}),
        "group_mean": group_mean(trial.objective, kept),
        "without_groups": value_of("pairs", kept) if "validation" in kept else None,
        "metrics": {**kept[split], "pair_disagreement": kept["pair_disagreement"]},
    }


class _GivenUpError(Exception):
    """A trial is behind the others and is not seen to its end."""


class _Watcher(Listener):
    """Tells how far a run is, and gives it up where it is behind."""

    def __init__(self, trial: SearchTrial, folder: Path | None, tell: Callable[[float], None] | None) -> None:
        self.trial, self.folder, self.tell = trial, folder, tell
        self.rows: list[Mapping[str, Any]] = []
        """Of all epochs, those before the run was taken up again included."""

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        self._total = total
        if step and self.folder is not None and (file := RunFolder(self.folder).metrics).exists():
            self.rows = [row for row in read_jsonl(file, unfinished=True) if row["step"] <= step]
        self.progress(step, {})

    def restarted(self, error: Exception, *, number: int, rate: float) -> None:
        self.rows = []

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        if self.tell is not None:
            self.tell(step / self._total)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        epoch, trial = row["epoch"], self.trial
        limit = trial.limits[epoch - 1] if epoch <= len(trial.limits) else None
        if limit is None or epoch >= trial.config.epochs:
            return
        reached = [value for seen in self.rows if (value := value_of(trial.objective, seen)) is not None]
        if max(reached, default=WORST) < limit:
            raise _GivenUpError
