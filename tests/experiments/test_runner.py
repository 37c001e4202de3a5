"""Studies are run as far as they are not done, whoever else runs them; in worker processes: `test_workers.py`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forking import Template

from ipg.data import load
from ipg.experiments import runner
from ipg.experiments.attempt import RunTrial
from ipg.experiments.runner import Tally, run_study
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import Study, Trial
from ipg.guidance import CollapseError
from ipg.training import loop

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")

Make = Callable[..., Trial]


def study(*trials: Trial, split: str = "test") -> Study:
    return Study("small", trials, split)


def quick(ran: list[int]) -> RunTrial:
    """Trials that only say that they ran."""

    def run(trial: Trial, **_: Any) -> dict[str, Any]:
        ran.append(trial.seed)
        return {"key": trial.key, "seed": trial.seed, "metrics": {"average": 0.5}, "seconds": 1.0}

    return run


def seeds(results: Path) -> list[int]:
    return [row["seed"] for row in read_rows(results / "trials.jsonl")]


def test_only_what_is_missing_is_run(trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[int] = []
    one, two, three = (trial(seed=seed) for seed in range(3))
    assert run_study(study(one, two), tmp_path, workers=1, run=quick(ran)) == Tally(2, 0, 0)
    assert ran == [0, 1]
    assert run_study(study(one, three, two), tmp_path, workers=1, run=quick(ran)) == Tally(3, 0, 0)
    assert ran == [0, 1, 2]
    capsys.readouterr()
    assert run_study(study(one, three, two), tmp_path, workers=1, run=quick(ran)) == Tally(3, 0, 0)
    assert ran == seeds(tmp_path) == [0, 1, 2]
    assert capsys.readouterr().out == "small: 3 trials, 3 done\n"


def test_trials_of_several_studies_in_one_queue(
    trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its own rows, and data from its own place; in the order given."""
    one, two = trial(seed=0), replace(trial(seed=1), study="other", dataset="elsewhere")
    ran: list[int] = []
    folders = {"small": tmp_path / "a", "other": tmp_path / "b"}
    run_study(study(two), folders["other"], workers=1, run=quick([]))
    more = replace(two, seed=2)
    paths: dict[str, str | None] = {}

    def run(given: Trial, **options: Any) -> dict[str, Any]:
        paths[given.dataset] = given.config.data_path
        if given.seed == 0:
            raise RuntimeError("no")
        return quick(ran)(given, **options)

    capsys.readouterr()
    tally = run_study(study(more, two, one), folders, data_path={"elsewhere": "there"}, workers=1, run=run)
    assert tally == Tally(2, 1, 0)
    assert tally.failures == {one.key}
    assert paths == {"elsewhere": "there", "bars": None}
    assert (seeds(folders["small"]), seeds(folders["other"])) == ([], [1, 2])
    said = capsys.readouterr().out
    assert "small: 3 trials, 1 done\n[1/2] other, elsewhere: ipg (paper)" in said
    assert f"(see {Store(folders['small']).error_file(one.key)})" in said


def test_a_failing_trial_does_not_stop_the_others(
    trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [trial("erm", seed=0), trial("ipg", seed=1, pairs="nowhere"), trial("erm", seed=2)]
    for attempt in range(2):  # tried again by the next runner
        assert run_study(study(*trials), tmp_path, workers=1, device="cpu") == Tally(2, 1, 0)
        assert seeds(tmp_path) == [0, 2]
        error = Store(tmp_path).error_file(trials[1].key)
        text = error.read_text(encoding="utf-8")
        assert text.startswith("Traceback (most recent call last):\n")
        assert "nowhere" in text.splitlines()[-1]
        (line,) = [line for line in capsys.readouterr().out.splitlines() if ": failed: " in line]
        assert line.startswith(
            f"[{2 - attempt}/{3 - 2 * attempt}] ipg (paper), pairs nowhere, alpha 0.1, every 4, seed 1: "
        )
        assert f"(see {error})" in line


def test_the_traceback_of_a_failed_trial_goes_when_it_succeeds(
    trial: Make, stubs: Any, notes: Path, tmp_path: Path
) -> None:
    one = stubs.study(2)
    assert run_study(one, tmp_path, workers=1, data_path=str(notes), run=stubs.failing) == Tally(1, 1, 0)
    error = Store(tmp_path).error_file(one.trials[1].key)
    assert error.read_text(encoding="utf-8").endswith("RuntimeError: seed 1\nis not to be had\n")
    assert run_study(one, tmp_path, workers=1, data_path=str(notes), run=stubs.quick) == Tally(2, 0, 0)
    assert not error.exists()


def test_an_interruption_stops_the_study(trial: Make, tmp_path: Path) -> None:
    def interrupted(one: Trial, **options: Any) -> dict[str, Any]:
        if one.seed == 1:
            raise KeyboardInterrupt
        return quick([])(one, **options)

    told = r"stopped, 1 of 3 trials are done; run the same command again to go on"
    with pytest.raises(KeyboardInterrupt, match=told):
        run_study(study(*(trial(seed=seed) for seed in range(3))), tmp_path, workers=1, run=interrupted)
    assert seeds(tmp_path) == [0]
    assert not Store(tmp_path).is_held(trial(seed=1).key)


def test_sigterm_interrupts_as_ctrl_c_does(trial: Make, tmp_path: Path) -> None:
    def terminated(one: Trial, **_: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("still there")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="stopped, 0 of 1"):
        run_study(study(trial()), tmp_path, workers=1, run=terminated)
    assert signal.getsignal(signal.SIGTERM) is before


def test_when_the_time_is_over_the_rest_is_left(
    trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(one: Trial, **options: Any) -> dict[str, Any]:
        if one.seed == 1:
            time.sleep(60)
        return quick([])(one, **options)

    trials, before = study(*(trial(seed=seed) for seed in range(3))), signal.getsignal(signal.SIGTERM)
    assert run_study(trials, tmp_path, workers=1, run=slow, limit=1.0) == Tally(1, 0, 0)
    said = "stub: 1 of 3 trials done; the time is over, run the same command again to go on"
    assert capsys.readouterr().out.splitlines()[-1] == said.replace("stub", trials.name)
    assert signal.getsignal(signal.SIGTERM) is before
    assert run_study(trials, tmp_path, workers=1, run=quick([]), limit=600.0) == Tally(3, 0, 0)
    assert "over" not in capsys.readouterr().out
    clocks = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for clock in clocks:
        clock.join(10)
    assert not any(clock.is_alive() for clock in clocks)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen while runs write what has come of them."""
    real = loop.Training._finish

    def happens(what: Callable[[], None]) -> None:
        def finish(run: loop.Training) -> Any:
            what()
            return real(run)

        monkeypatch.setattr(loop.Training, "_finish", finish)

    return happens


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_in_the_last_part_of_a_trial_stops_the_study(
    number: signal.Signals, trial: Make, tmp_path: Path, late: Callable[[Callable[[], None]], None]
) -> None:
    """The trial itself has its row."""
    trials = study(*(trial("erm", seed=seed) for seed in range(3)))
    late(lambda: signal.raise_signal(number))
    for done in (1, 2, 3):
        told = f"stopped, {done} of 3 trials are done; run the same command again to go on"
        with pytest.raises(KeyboardInterrupt, match=told):
            run_study(trials, tmp_path, workers=1, device="cpu")
        assert seeds(tmp_path) == list(range(done))
    late(lambda: None)
    assert run_study(trials, tmp_path, workers=1, device="cpu") == Tally(3, 0, 0)


def test_a_stop_in_a_trial_that_breaks_off_stops_the_study(
    trial: Make, tmp_path: Path, late: Callable[[Callable[[], None]], None]
) -> None:
    """It has a row, too, and may be asked to stop just before it is found to have collapsed."""

    def collapse() -> None:
        signal.raise_signal(signal.SIGINT)
        raise CollapseError("collapsed")

    late(collapse)
    with pytest.raises(KeyboardInterrupt, match="stopped, 1 of 2 trials are done"):
        run_study(study(*(trial("erm", seed=seed, restarts=0) for seed in range(2))), tmp_path, workers=1, device="cpu")
    assert seeds(tmp_path) == [0]


def test_a_stop_at_the_end_of_a_first_stage_stops_the_study(
    trial: Make, tmp_path: Path, late: Callable[[Callable[[], None]], None]
) -> None:
    trials = study(trial("jtt", seed=0), trial("erm", seed=1))
    late(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="stopped, 0 of 2 trials are done"):
        run_study(trials, tmp_path, workers=1, device="cpu")
    assert Store(tmp_path).has_begun(trials.trials[0].key)
    late(lambda: None)
    assert run_study(trials, tmp_path, workers=1, device="cpu") == Tally(2, 0, 0)


def test_time_that_is_over_in_the_last_part_of_a_trial_is_over(
    trial: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[Callable[[], None]], None],
) -> None:
    clocks: list[Any] = []

    class Clock(threading.Timer):
        """Rings when it is told to."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            clocks.append(self)

        def run(self) -> None:
            self.finished.wait()

    monkeypatch.setattr(runner.threading, "Timer", Clock)
    late(lambda: clocks[0].function())
    trials = study(*(trial("erm", seed=seed) for seed in range(3)))
    assert run_study(trials, tmp_path, workers=1, device="cpu", limit=600.0) == Tally(1, 0, 0)
    said = "small: 1 of 3 trials done; the time is over, run the same command again to go on"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_time_that_is_over_is_seen_between_trials(trial: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever became of the signal."""
    monkeypatch.setattr(runner.os, "kill", lambda *_: None)
    ran: list[int] = []

    def slow(one: Trial, **options: Any) -> dict[str, Any]:
        time.sleep(0.5)
        return quick(ran)(one, **options)

    trials = study(*(trial(seed=seed) for seed in range(3)))
    assert run_study(trials, tmp_path, workers=1, run=slow, limit=0.1) == Tally(1, 0, 0)
    assert ran == [0]


def test_a_cut_line_is_run_again(trial: Make, tmp_path: Path) -> None:
    trials = [trial(seed=seed) for seed in range(3)]
    file = tmp_path / "trials.jsonl"
    run_study(study(*trials[:2]), tmp_path, workers=1, run=quick([]))
    content = file.read_bytes()
    for cut in (2, 12, 60):
        file.write_bytes(content[:-cut])
        ran: list[int] = []
        run_study(study(*trials), tmp_path, workers=1, run=quick(ran))
        assert ran == [1, 2]
        assert seeds(tmp_path) == [0, 1, 2]


def test_device_and_path_are_the_machines(trial: Make, tmp_path: Path, bars: dict[str, Any]) -> None:
    run_study(study(trial("erm", seed=3)), tmp_path, data_path="digits.npz", device="cpu", workers=1)
    assert bars == {"path": "digits.npz", "size": None, "seed": 3}
    (row,) = read_rows(tmp_path / "trials.jsonl")
    assert row["key"] == trial("erm", seed=3).key


def test_an_engine_is_for_trials_that_name_none_and_makes_no_others(trial: Make, tmp_path: Path) -> None:
    open_, eager = trial(seed=0, engine="auto"), trial(seed=1, engine="eager")
    came: dict[str, str] = {}

    def run(given: Trial, **_: Any) -> dict[str, Any]:
        came[given.key] = given.config.engine
        return {"key": given.key, "seed": given.seed, "metrics": {"average": 0.5}, "seconds": 1.0}

    assert run_study(study(open_), tmp_path, device="cpu", engine="eager", workers=1, run=run) == Tally(1, 0, 0)
    assert run_study(study(open_, eager), tmp_path, device="cpu", workers=1, run=run) == Tally(2, 0, 0)
    assert came == {open_.key: "eager", eager.key: "eager"}
    assert open_.key != eager.key


def test_what_cannot_be_compiled_keeps_what_suits_it(trial: Make) -> None:
    assert [runner._able(trial(method), "compiled") for method in ("ipg", "meta_irm", "epg", "gals_mask")] == [
        "compiled",
        "auto",
        "auto",
        "auto",
    ]
    assert runner._able(trial("epg"), "captured") == "captured"


@pytest.mark.parametrize(
    ("engine", "says"), [("captured", "engine='captured' is for a single CUDA GPU"), ("fast", "engine='fast'")]
)
def test_an_engine_that_there_is_not_is_said_once(engine: str, says: str, trial: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        run_study(study(trial()), tmp_path, device="cpu", engine=engine, workers=1)
    assert not list(tmp_path.rglob("*.txt"))


def test_trials_in_a_row_read_the_same_images_once_and_score_the_same(
    trial: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [trial("erm"), trial("ipg"), trial("joint", seed=1), trial("ipg", alpha=0.2)]
    for one in trials:
        run_study(study(one), tmp_path / "alone", device="cpu", workers=1)
    read: list[int] = []
    real = load.DATASETS["bars"]
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: (read.append(seed), real(path, size, seed))[1])
    run_study(study(*trials), tmp_path / "together", device="cpu", workers=1)
    assert read == [0, 1]
    alone, together = (
        [row["metrics"] for row in read_rows(tmp_path / name / "trials.jsonl")] for name in ("alone", "together")
    )
    assert alone == together


def test_a_trial_under_way_goes_on(trial: Make, tmp_path: Path) -> None:
    """Killed after the first of two epochs; and once more when all was done but the row."""
    one = trial("erm")
    store = Store(tmp_path)

    def shares(results: Path) -> list[float]:
        told: list[float] = []

        def listen(given: Trial, **options: Any) -> dict[str, Any]:
            return runner.run_trial(given, **options | {"tell": told.append})

        run_study(study(one), results, device="cpu", workers=1, run=listen)
        return told

    def stopping(given: Trial, **options: Any) -> dict[str, Any]:
        def stop(share: float) -> None:
            if share == 1:
                raise KeyboardInterrupt

        return runner.run_trial(given, **options | {"tell": stop})

    with pytest.raises(KeyboardInterrupt):
        run_study(study(one), tmp_path, device="cpu", workers=1, run=stopping)
    assert (store.run_folder(one.key) / "checkpoint.safetensors").exists()
    assert shares(tmp_path)[0] == 0.5
    run = store.trials / one.key / "run"
    assert {path.name for path in run.iterdir()} - {"lock"} == {"config.json", "metrics.jsonl", "result.json", "done"}
    runner.run_trial(one, folder=tmp_path / "other" / "trials" / one.key / "run")
    assert shares(tmp_path / "other") == []  # read back
    assert len(read_rows(tmp_path / "other" / "trials.jsonl")) == 1


def test_rows_of_the_split_that_is_asked_for_are_made(trial: Make, tmp_path: Path) -> None:
    """Also of a trial that was stopped when another split was, and of one that had ended with that evaluated."""
    trials = [trial("erm", seed=seed) for seed in range(2)]

    def stopping(given: Trial, **options: Any) -> dict[str, Any]:
        def stop(share: float) -> None:
            if given.seed == 1 and share == 1:
                raise KeyboardInterrupt

        return runner.run_trial(given, **options | {"tell": stop})

    with pytest.raises(KeyboardInterrupt, match="1 of 2 trials are done"):
        run_study(study(*trials, split="validation"), tmp_path, device="cpu", workers=1, run=stopping)
    for _ in range(2):
        assert run_study(study(*trials), tmp_path, device="cpu", workers=1) == Tally(2, 0, 0)
        rows = read_rows(tmp_path / "trials.jsonl")
        assert [(row["split"], row["seed"]) for row in rows] == [("validation", 0), ("test", 0), ("test", 1)]
    assert len({row["key"] for row in rows}) == 2
    run_study(study(*trials, split="validation"), tmp_path, device="cpu", workers=1)
    assert len(read_rows(tmp_path / "trials.jsonl")) == 4


# -- several runners -------------------------------------------------------------------------------------------------


def test_a_trial_that_another_runner_has_is_left_to_it(
    trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [trial(seed=seed) for seed in range(3)]
    ran: list[int] = []
    with Store(tmp_path).claim(trials[1].key):
        assert run_study(study(*trials), tmp_path, workers=1, run=quick(ran)) == Tally(2, 0, 1)
        assert run_study(study(*trials), tmp_path, workers=1, run=quick(ran)) == Tally(2, 0, 1)
    assert ran == [0, 2]
    assert capsys.readouterr().out.endswith("small: 2 of 3 trials done; 1 being run by another runner\n")
    assert run_study(study(*trials), tmp_path, workers=1, run=quick(ran)) == Tally(3, 0, 0)


def test_a_trial_that_another_runner_gives_up_is_taken(trial: Make, tmp_path: Path) -> None:
    trials = [trial(seed=seed) for seed in range(3)]
    ran: list[int] = []
    other = Store(tmp_path).claim(trials[0].key)
    other.__enter__()

    def run(one: Trial, **options: Any) -> dict[str, Any]:
        if one.seed == 2:
            other.__exit__(None, None, None)
        return quick(ran)(one, **options)

    assert run_study(study(*trials), tmp_path, workers=1, run=run) == Tally(3, 0, 0)
    assert ran == [1, 2, 0]


def test_a_trial_that_another_runner_has_done_meanwhile_is_not_run(trial: Make, tmp_path: Path) -> None:
    trials = [trial(seed=seed) for seed in range(2)]
    ran: list[int] = []

    def run(one: Trial, **options: Any) -> dict[str, Any]:
        Store(tmp_path).finish(quick([])(trials[1]))
        return quick(ran)(one, **options)

    assert run_study(study(*trials), tmp_path, workers=1, run=run) == Tally(2, 0, 0)
    assert ran == [0]
    assert seeds(tmp_path) == [1, 0]


@pytest.mark.slow
def test_two_runners_do_every_trial_once(template: Template, stubs: Any, notes: Path, tmp_path: Path) -> None:
    """Both are at it at the same time: none ends a trial before each has begun one."""
    line = [stubs.__file__, tmp_path / "results", notes, "together", "12", "1"]
    runners = [template.start(*line, log=tmp_path / f"{number}.log") for number in range(2)]
    ends = [process.wait(120) for process in runners]
    assert ends == [0, 0], [process.log.read_text() for process in runners]
    rows = read_rows(tmp_path / "results" / "trials.jsonl")
    assert sorted(row["seed"] for row in rows) == list(range(12))
    assert {row["pid"] for row in rows} == {process.pid for process in runners}
    begun = [file.read_text(encoding="utf-8").split() for file in notes.glob("*.txt")]
    assert len(begun) == sum(map(len, begun)) == 12


def test_workers_that_are_none(trial: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 workers are asked for; expected at least 1"):
        run_study(study(trial()), tmp_path, workers=0)
