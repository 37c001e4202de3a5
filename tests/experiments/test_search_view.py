"""What people see of a search."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipg.config import RunConfig
from ipg.experiments.attempt import Ended
from ipg.experiments.search.plan import Plan, Tried
from ipg.experiments.search.result import Found
from ipg.experiments.search.trial import SearchTrial
from ipg.experiments.search.view import SearchView
from ipg.experiments.store import Store


def trial(number: int) -> SearchTrial:
    settings = (("alpha", 0.25),)
    return SearchTrial("s", "bars", "ipg", "search", 100, RunConfig(seed=100), number=number, settings=settings)


def row(number: int, value: float, state: str = "complete", **more: Any) -> dict[str, Any]:
    return {"number": number, "value": value, "state": state, "seconds": 2.0, "curve": [0.1, value], **more}


def found(*values: float, trials: int = 7) -> Found:
    """A search of so many trials, of which some are done."""
    plan = Plan("it", RunConfig(seed=100), {}, "worst_group", trials)
    return Found(plan, [Tried(n, "complete", value, {}, {"group_mean": 0.6}) for n, value in enumerate(values)], {})


@pytest.fixture
def view(tmp_path: Path) -> SearchView:
    return SearchView(Console(file=io.StringIO(), width=160), {"s": Store(tmp_path)}, found(0.5))


def said(view: SearchView) -> list[str]:
    file = view.console.file
    assert isinstance(file, io.StringIO)
    return [line.rpartition(", ")[0] if line.endswith("left") else line for line in file.getvalue().splitlines()]


def bar(view: SearchView) -> str:
    """The line beneath the bars, without the time that is left."""
    return view.told().partition(", 0 s left")[0]


def test_every_way_a_trial_can_end(view: SearchView) -> None:
    ends = [
        Ended("", "done", row(1, 0.4)),
        Ended("", "done", row(2, 0.75)),
        Ended("", "done", row(3, 0.0, "wrong", error="it collapsed")),
        Ended("", "done", row(4, 0.25, "pruned")),
        Ended("", "failed", error="RuntimeError: no"),
    ]
    for number, ended in enumerate(ends, start=1):
        view.started(trial(number))
        view.ended(trial(number), ended)
    lines = said(view)
    assert lines[0] == "[1/6] trial 1: alpha 0.25: 40.0 % in 2.0 s"
    assert lines[1] == "[2/6] trial 2: alpha 0.25: 75.0 % in 2.0 s, the best so far"
    assert lines[2] == "[3/6] trial 3: alpha 0.25: went wrong, counted as 0 %: it collapsed"
    assert lines[3] == "[4/6] trial 4: alpha 0.25: 25.0 % after 2 epochs, behind the median: given up in 2.0 s"
    assert lines[4].startswith("[4/6] trial 5: alpha 0.25: failed: RuntimeError: no (see ")
    assert bar(view).startswith("best 75.0 % (trial 2), 4 of 6 done, 0 running, 1 given up, 1 went wrong, 1 failed")


def test_of_equal_trials_the_best_is_the_one_that_is_kept(view: SearchView) -> None:
    """That with the higher mean of groups, then the first, as in `best.toml`."""
    for number, mean in ((1, 0.6), (2, 0.7), (3, 0.7)):
        view.started(trial(number))
        view.ended(trial(number), Ended("", "done", row(number, 0.5, group_mean=mean)))
    assert [line.endswith("best so far") for line in said(view)] == [False, True, False]
    assert bar(view).startswith("best 50.0 % (trial 2), 3 of 6 done")


def test_what_others_do_counts_as_done(view: SearchView) -> None:
    view.started(trial(1))
    view.keep_up(found(0.5, 0.4, 0.8))
    view.ended(trial(1), Ended("", "done", row(3, 0.7)))
    assert said(view) == ["[3/6] trial 1: alpha 0.25: 70.0 % in 2.0 s"]
    assert bar(view).startswith("best 80.0 % (trial 2), 3 of 6 done")


def test_a_failed_trial_leaves_as_much_to_do(view: SearchView) -> None:
    view.started(trial(1))
    view.ended(trial(1), Ended("", "failed", error="RuntimeError: no"))
    assert view.settled == 0


def test_what_runs_is_counted(view: SearchView) -> None:
    view.started(trial(1))
    view.moved(trial(1).key, 0.0)
    view.moved(trial(1).key, 0.5)
    assert bar(view).startswith("best 50.0 % (trial 0), 0 of 6 done, 1 running")
    view.ended(trial(1), Ended("", "elsewhere"))
    assert bar(view).startswith("best 50.0 % (trial 0), 0 of 6 done")
    assert said(view) == []


def test_a_terminal_shows_it(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with SearchView(console, {"s": Store(tmp_path)}, found(trials=2)) as view:
        view.started(trial(0))
        view.ended(trial(0), Ended("", "done", row(0, 0.9)))
        view._bars.refresh()
    file = console.file
    assert isinstance(file, io.StringIO)
    assert "best 90.0 % (trial 0), 1 of 2 done" in file.getvalue()
