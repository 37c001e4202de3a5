"""Trials whose seconds count: each comes after a short run of its own kind, so that nothing is left to make ready."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipg.experiments.arms import is_cold, run_of
from ipg.experiments.attempt import Tell, was_made_ready
from ipg.experiments.study import Trial
from ipg.experiments.trial import run_trial
from ipg.training.device import resolve_device

__all__ = ["run_timed"]

_READY: set[Hashable] = set()
"""The kinds of runs that this process has made."""


def run_timed(trial: Trial, *, metrics_split: str, folder: Path | None, tell: Tell | None) -> dict[str, Any]:
    """As `run_trial`; on a GPU the first of a kind in a process comes after an epoch of it that leaves no trace.

    The first run of a process loads libraries, and the first of a kind compiles, captures and tries algorithms, which
    takes longer than training on small data. A warm-up that fails is no matter: the trial will tell. A trial that met
    what the epoch had not, such as a last batch of another length, runs once more, and that one counts.
    """
    if resolve_device(trial.config.device).type == "cpu":
        return run_trial(trial, metrics_split=metrics_split, folder=folder, tell=tell)
    kind = run_of(replace(trial, seed=0))
    if kind not in _READY:
        _READY.add(kind)
        short = replace(trial, config=trial.config.with_changes(epochs=1, warmup=0))
        with suppress(Exception):
            run_trial(short, metrics_split=metrics_split, folder=None, tell=None)
        was_made_ready(trial.dataset)
    row = run_trial(trial, metrics_split=metrics_split, folder=folder, tell=tell)
    if is_cold(row):
        row = run_trial(trial, metrics_split=metrics_split, folder=None, tell=tell)
    return row
