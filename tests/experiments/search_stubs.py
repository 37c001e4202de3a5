"""Trials of a search that do as they are told, for tests with real processes; their data path is the folder of notes.

As a script, a search: `python search_stubs.py FOLDER NOTES FUNCTION TRIALS WORKERS [STORAGE]`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from waiting import wait_for

from ipg.config import RunConfig
from ipg.experiments.search.plan import Plan
from ipg.experiments.search.trial import SearchTrial
from ipg.methods.space import Choice, Uniform


def plan(trials: int, notes: Path | str = "", **changes: Any) -> Plan:
    """A search for alpha, without data."""
    known: dict[str, Any] = {
        "name": "stub",
        "base": RunConfig(seed=100, epochs=4, data_path=str(notes)),
        "space": {"alpha": Uniform(0, 0.9)},
        "objective": "worst_group",
        "trials": trials,
    }
    return Plan(**known | changes)


CHOICES = {"every": Choice((1, 2)), "pair_batch": Choice((8, 16))}


def worth(alpha: float) -> float:
    """What an alpha is worth: the most at 0.3."""
    return 1 - (alpha - 0.3) ** 2


def quick(trial: SearchTrial, **_: Any) -> dict[str, Any]:
    """A row at once, and a line in the trial's notes: which process began it."""
    if trial.config.data_path:
        with (Path(trial.config.data_path) / f"{trial.number}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    value = worth(trial.config.alpha)
    return {
        "key": trial.key, "number": trial.number, "state": "complete", "value": value, "curve": [value / 2, value],
        "seconds": 0.5, "group_mean": value, "without_groups": 1 - value, "commit": "abc", "hardware": "stub",
        "versions": {"ipg": "0"}, "pid": os.getpid(),
    }  # fmt: skip


def wrong(trial: SearchTrial, **options: Any) -> dict[str, Any]:
    """Trial 1 collapses."""
    row = quick(trial, **options)
    return row | ({"state": "wrong", "value": 0.0, "error": "collapsed"} if trial.number == 1 else {})


def failing(trial: SearchTrial, **options: Any) -> dict[str, Any]:
    """Trial 1 fails."""
    row = quick(trial, **options)
    if trial.number == 1:
        raise RuntimeError("trial 1\nis not to be had")
    return row


def never(trial: SearchTrial, **options: Any) -> dict[str, Any]:
    """All trials fail."""
    raise RuntimeError("no pairs")


def dying_once(trial: SearchTrial, **options: Any) -> dict[str, Any]:
    """The process that first has trial 1 dies."""
    row = quick(trial, **options)
    if trial.number == 1 and len(begun(Path(str(trial.config.data_path)))[1]) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def waiting(trial: SearchTrial, **options: Any) -> dict[str, Any]:
    """Trials from number 2 on wait for a file by the name of `go`."""
    row = quick(trial, **options)
    if trial.number >= 2:
        wait_for((Path(str(trial.config.data_path)) / "go").exists)
    return row


def slowly(trial: SearchTrial, **options: Any) -> dict[str, Any]:
    """Takes its time."""
    row = quick(trial, **options)
    time.sleep(0.3)
    return row


def begun(notes: Path) -> dict[int, list[int]]:
    """By trial, which processes began it."""
    return {int(file.stem): [int(line) for line in file.read_text("utf-8").split()] for file in notes.glob("*.txt")}


if __name__ == "__main__":
    import search_stubs  # itself, by the name that workers find it by

    from ipg.experiments.search.run import search

    folder, notes, function, trials, workers, *storage = sys.argv[1:]
    found = search(
        plan(int(trials), notes, sampler="random"),
        Path(folder),
        run=getattr(search_stubs, function),
        workers=int(workers),
        storage=storage[0] if storage else None,
    )
    print(found.count("complete"))
