"""Trials that are timed come after a short run of their kind, which nobody sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ipg.experiments import attempt, timed
from ipg.experiments.attempt import Job
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import Trial


class Runs:
    """Stands for `run_trial`: writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []
        self.breaks = False
        self.preparing: list[float] = []
        """Seconds of the runs to come; none beyond."""

    def __call__(self, trial: Trial, *, metrics_split: str, folder: Path | None, tell: Any) -> dict[str, Any]:
        self.asked.append((trial.seed, trial.config.epochs, folder is not None))
        if self.breaks and folder is None:
            raise ValueError("no luck")
        preparing = self.preparing.pop(0) if self.preparing else 0.0
        return {"key": trial.key, "seed": trial.seed, "split": metrics_split, "preparing_seconds": preparing}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs()
    monkeypatch.setattr(timed, "run_trial", found)
    monkeypatch.setattr(timed, "_READY", set())
    monkeypatch.setattr(attempt, "_READY", set())
    monkeypatch.setattr("ipg.training.memory.memory_of_others", lambda device: 0)
    return found


def on(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "resolve_device", lambda name: torch.device(device))
    monkeypatch.setattr("ipg.training.device.resolve_device", lambda name: torch.device(device))


def trials(stubs: Any) -> list[Trial]:
    """Two seeds of one kind, then one of another."""
    one, two, other = stubs.study(3).trials
    return [
        *(replace(trial, config=trial.config.with_changes(epochs=5)) for trial in (one, two)),
        replace(other, config=other.config.with_changes(epochs=5, batch=7)),
    ]


@pytest.mark.parametrize("breaks", [False, True])
def test_the_first_of_a_kind_comes_after_an_epoch_of_it(
    runs: Runs, stubs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    on("cuda", monkeypatch)
    runs.breaks = breaks
    job = Job({"stub": Store(tmp_path)}, "test", timed.run_timed)
    for trial in trials(stubs):
        assert job.attempt(trial, lambda share: None).state == "done"
    assert runs.asked == [(0, 1, False), (0, 5, True), (1, 5, True), (2, 1, False), (2, 5, True)]
    assert not any("first" in row for row in read_rows(tmp_path / "trials.jsonl"))


def test_a_cpu_has_nothing_to_make_ready(
    runs: Runs, stubs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("cpu", monkeypatch)
    job = Job({"stub": Store(tmp_path)}, "test", timed.run_timed)
    for trial in trials(stubs):
        job.attempt(trial, lambda share: None)
    assert [epochs for _, epochs, _ in runs.asked] == [5, 5, 5]


def test_a_trial_that_had_more_to_prepare_runs_once_more(
    runs: Runs, stubs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("cuda", monkeypatch)
    runs.preparing = [30.0, 7.8, 0.3, 0.2]
    job = Job({"stub": Store(tmp_path)}, "test", timed.run_timed)
    for trial in trials(stubs)[:2]:
        job.attempt(trial, lambda share: None)
    assert runs.asked == [(0, 1, False), (0, 5, True), (0, 5, False), (1, 5, True)]
    assert [row["preparing_seconds"] for row in read_rows(tmp_path / "trials.jsonl")] == [0.3, 0.2]


def test_a_trial_that_always_has_more_to_prepare_is_not_run_for_ever(
    runs: Runs, stubs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("cuda", monkeypatch)
    runs.preparing = [9.0] * 9
    Job({"stub": Store(tmp_path)}, "test", timed.run_timed).attempt(trials(stubs)[0], lambda share: None)
    assert len(runs.asked) == 3
