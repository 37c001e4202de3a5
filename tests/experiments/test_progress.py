"""What people see of a study, and how long it says the rest will take."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipg.experiments import progress
from ipg.experiments.attempt import Ended
from ipg.experiments.progress import MOST_SHOWN, View, duration
from ipg.experiments.store import Store
from ipg.experiments.study import Trial

Make = Callable[..., Trial]


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def view_of(missing: int, folder: Path, *, terminal: bool = False) -> tuple[View, Clock, io.StringIO]:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, legacy_windows=False, _environ={})
    return View(console, {"small": Store(folder)}, name="small", missing=missing, clock=clock), clock, out


def done(trial: Trial, seconds: float = 2.0) -> Ended:
    return Ended(trial.key, "done", {"metrics": {"average": 0.75}, "seconds": seconds})


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (89, "1 min"), (90, "2 min"), (3569, "59 min"),
        (3600, "1 h 00 min"), (7500, "2 h 05 min"), (90_000, "25 h 00 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"average": 0.4667, "worst_group": 0.0}, "worst group 0.0 %, average 46.7 % in 2.0 s"),
        ({"average": None, "worst_group": None}, "no figure in 2.0 s"),
    ],
)
def test_figures_have_names(trial: Make, tmp_path: Path, metrics: dict[str, float | None], said: str) -> None:
    view, _, out = view_of(1, tmp_path)
    one = trial("erm", seed=0, pairs=0)
    with view:
        view.started(one)
        view.ended(one, Ended(one.key, "done", {"metrics": metrics, "seconds": 2.0}))
    assert out.getvalue() == f"[1/1] erm (paper), seed 0: {said}\n"


def test_a_line_for_each_trial_that_ends(trial: Make, tmp_path: Path) -> None:
    view, clock, out = view_of(4, tmp_path)
    trials = [trial("erm", seed=seed, pairs=0) for seed in range(4)]
    with view:
        for one in trials[:3]:
            view.started(one)
        clock.now = 10.0
        view.ended(trials[0], done(trials[0]))
        view.lost(trials[1], "its process ended with status 1; another goes on with it")
        view.started(trials[1])
        view.ended(trials[1], Ended(trials[1].key, "failed", error="ValueError: no"))
        view.ended(trials[2], Ended(trials[2].key, "elsewhere"))
        view.ended(trials[3], Ended(trials[3].key, "done"))  # by another runner
    error = tmp_path / "trials" / trials[1].key / "error.txt"
    assert out.getvalue() == (
        "[1/4] erm (paper), seed 0: average 75.0 % in 2.0 s, 30 s left\n"
        "erm (paper), seed 1: its process ended with status 1; another goes on with it\n"
        f"[2/4] erm (paper), seed 1: failed: ValueError: no (see {error}), 20 s left\n"
    )
    assert (view.done, view.failed) == (2, 1)


def test_a_run_that_broke_off_may_have_no_figure(trial: Make, tmp_path: Path) -> None:
    view, _, out = view_of(1, tmp_path)
    one = trial("jtt", pairs=0)
    row = {"metrics": {"average": None}, "seconds": 2.0, "collapse": "the loss is NaN"}
    with view:
        view.started(one)
        view.ended(one, Ended(one.key, "done", row))
    assert out.getvalue() == "[1/1] jtt (paper), seed 0: no figure in 2.0 s (the loss is NaN)\n"


def test_the_rest_is_told_from_the_pace(trial: Make, tmp_path: Path) -> None:
    """By hand: 4 trials missing; in 30 s one was done whole, one went from 1/2 to 3/4, one from 0 to 1/4."""
    view, clock, _ = view_of(4, tmp_path)
    one, two, three = (trial(seed=seed) for seed in range(3))
    assert view.seconds_left() is None
    for each, share in ((one, 0.0), (two, 0.5), (three, 0.0)):
        view.started(each)
        view.moved(each.key, share)
    assert view.seconds_left() is None  # nothing has moved yet
    clock.now = 30.0
    view.moved(two.key, 0.75)
    view.moved(three.key, 0.25)
    view.ended(one, done(one))
    # 1 + 1/4 + 1/4 trials in 30 s; left are 1/4 + 3/4 + 1
    assert view.seconds_left() == pytest.approx(30 * 2 / 1.5)
    view.ended(two, Ended(two.key, "failed", error="no"))
    assert view.seconds_left() == pytest.approx(30 * 1.75 / 1.5)


def test_a_terminal_has_bars(trial: Make, tmp_path: Path) -> None:
    view, _, out = view_of(3, tmp_path, terminal=True)
    one, two = trial(seed=0, epochs=10), trial(seed=1)
    with view:
        view.started(one)
        view.started(two)
        view.moved(one.key, 0.35)
        view.moved(two.key, 1.0)
        view.moved("of somebody else", 0.1)
        view._bars.refresh()
        view.ended(two, done(two))
        view._bars.refresh()
    text = out.getvalue()
    assert "epoch 4/10" in text
    assert "epoch 2/2" in text
    assert "1 of 3 done, 1 running, 0 failed" in text
    assert "[1/3] ipg (paper), 8 pairs" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_narrow_terminal_names_are_cut_and_nothing_else(trial: Make, tmp_path: Path, width: int) -> None:
    view, clock, out = view_of(40, tmp_path, terminal=True)
    for seed in range(2):
        one = trial(seed=seed, epochs=10, alpha=0.123)
        view.started(one)
        view.moved(one.key, 0.0)
        view.moved(one.key, 0.25)
    clock.now, view.console.width = 30.0, width
    view.console.print(view._bars.get_renderable())
    study, *trials, told = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).splitlines()
    assert study.startswith("small ")
    assert [len(re.findall("[━╸╺]", line)) for line in (study, *trials)] == [16] * 3
    assert [line.rstrip().endswith("epoch 3/10") for line in trials] == [True] * 2
    assert ["seed 0" in line and "ipg (paper)" in line for line in trials] == [True, False]
    assert told.rstrip() == "0 of 40 done, 2 running, 0 failed, 40 min left"


def test_not_every_trial_of_a_cluster_has_a_bar(trial: Make, tmp_path: Path) -> None:
    view, _, _ = view_of(100, tmp_path, terminal=True)
    trials: list[Any] = [trial(seed=seed) for seed in range(100)]
    for one in trials:
        view.started(one)
    assert sum(task.visible for task in view._bars.tasks) == 1 + MOST_SHOWN


def test_a_log_is_told_once_a_minute_what_runs(trial: Make, tmp_path: Path) -> None:
    view, clock, out = view_of(6, tmp_path)
    trials = [trial("erm", seed=seed, pairs=0) for seed in range(6)]
    for one in trials[:2]:
        view.started(one)
        view.moved(one.key, 0.0)
    clock.now = 59.0
    view.moved(trials[0].key, 0.25)
    assert out.getvalue() == ""
    clock.now = 60.0
    view.moved(trials[1].key, 0.5)
    first = f"running: {trials[0].title} at 25%; {trials[1].title} at 50%; 7 min left\n"
    assert out.getvalue() == first
    clock.now = 110.0
    view.ended(trials[0], done(trials[0]))  # which says so by itself
    said = out.getvalue()
    clock.now = 169.0
    view.moved(trials[1].key, 0.6)
    assert out.getvalue() == said
    for one in trials[2:]:
        view.started(one)
    clock.now = 171.0
    view.moved(trials[1].key, 0.75)
    assert f"running: {trials[1].title} at 75%; {trials[2].title} at 0%; " in out.getvalue()
    assert "; 1 more; " in out.getvalue()


def test_a_log_is_told_also_where_nothing_moves_on(
    trial: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a trial is compiled; nobody listens any more afterwards."""
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.005)
    view, clock, out = view_of(1, tmp_path)
    one = trial("erm", seed=0, pairs=0)
    with view:
        clock.now = 60.0
        time.sleep(0.05)
        assert out.getvalue() == ""  # nothing runs yet
        view.started(one)
        deadline = time.monotonic() + 10
        while not out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        assert out.getvalue() == f"running: {one.title} at 0%\n"  # once
    clock.now = 600.0
    time.sleep(0.05)
    assert out.getvalue().count("running") == 1


def test_a_terminal_has_bars_for_that(trial: Make, tmp_path: Path) -> None:
    view, clock, out = view_of(1, tmp_path, terminal=True)
    one = trial("erm", seed=0, pairs=0)
    view.started(one)
    view.moved(one.key, 0.0)
    clock.now = 600.0
    view.moved(one.key, 0.5)
    assert "running: " not in out.getvalue()
