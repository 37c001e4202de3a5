"""Trials that do as they are told, for tests with real processes; their data path is the folder of their notes.

As a script, a runner: `python study_stubs.py RESULTS NOTES FUNCTION TRIALS WORKERS`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from waiting import wait_for

from ipg.config import RunConfig
from ipg.experiments.study import Study, Trial
from ipg.training.memory import OutOfMemoryError


def study(trials: int, *, epochs: int = 4) -> Study:
    """A study of one arm."""
    config = RunConfig(method="erm", epochs=epochs)
    made = (Trial("stub", "colored_fashion", "erm", "paper", n, config.with_changes(seed=n)) for n in range(trials))
    return Study("stub", tuple(made), "test")


def notes(trial: Trial) -> Path:
    """A file that gets a line whenever the trial is begun: which process began it."""
    assert trial.config.data_path is not None
    return Path(trial.config.data_path) / f"{trial.seed}.txt"


def quick(trial: Trial, **_: Any) -> dict[str, Any]:
    """A row at once."""
    with notes(trial).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    return {"key": trial.key, "seed": trial.seed, "metrics": {"average": 0.5}, "seconds": 1.0, "pid": os.getpid()}


def failing(trial: Trial, **options: Any) -> dict[str, Any]:
    """Seed 1 fails."""
    row = quick(trial, **options)
    if trial.seed == 1:
        raise RuntimeError("seed 1\nis not to be had")
    return row


def dying_once(trial: Trial, **options: Any) -> dict[str, Any]:
    """The process that first has seed 1 dies."""
    row = quick(trial, **options)
    if trial.seed == 1 and len(notes(trial).read_text(encoding="utf-8").splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def crowded(trial: Trial, **options: Any) -> dict[str, Any]:
    """There is not enough memory for seed 1 at first, and never for seed 2."""
    row = quick(trial, **options)
    times = len(notes(trial).read_text(encoding="utf-8").splitlines())
    if trial.seed == 2 or (trial.seed == 1 and times == 1):
        raise OutOfMemoryError(batch=128, pair_batch=None, fits=29, kept=False)
    return row


def dying(trial: Trial, **options: Any) -> dict[str, Any]:
    """Every process that has seed 1 dies."""
    row = quick(trial, **options)
    if trial.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def together(trial: Trial, **options: Any) -> dict[str, Any]:
    """Nobody ends a trial before two processes have begun one."""
    row = quick(trial, **options)
    wait_for(lambda: len(pids(notes(trial).parent)) == 2)
    return row


def waiting(trial: Trial, **options: Any) -> dict[str, Any]:
    """Waits for a file by the name of `go`."""
    row = quick(trial, **options)
    wait_for((notes(trial).parent / "go").exists)
    return row


def threads(trial: Trial, **options: Any) -> dict[str, Any]:
    """The row tells how many threads torch may use."""
    import torch

    return {**quick(trial, **options), "threads": torch.get_num_threads()}


def pipes(trial: Trial, **options: Any) -> dict[str, Any]:
    """The row tells where the process looks for NVIDIA's Multi-Process Service."""
    return {**quick(trial, **options), "pipes": os.environ.get("CUDA_MPS_PIPE_DIRECTORY")}


def pids(folder: Path) -> set[int]:
    """Who has begun a trial."""
    return {int(line) for file in folder.glob("*.txt") for line in file.read_text(encoding="utf-8").split()}


if __name__ == "__main__":
    import study_stubs  # itself, by the name that workers find it by

    from ipg.experiments.runner import run_study

    results, folder, function, trials, workers = sys.argv[1:]
    run = getattr(study_stubs, function)
    tally = run_study(study(int(trials)), Path(results), data_path=folder, workers=int(workers), run=run)
    print(tally)
