"""Trials as Ray tasks: with a Ray of straw for what seldom happens, and on a real one of two nodes that loses one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipg.experiments import cluster
from ipg.experiments.cluster import RETRIES, Cluster, Mailbox, run_task
from ipg.experiments.runner import Tally, run_study
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import Study, Trial
from ipg.training.memory import OutOfMemoryError

Make = Callable[..., Trial]


class RayError(Exception):
    """What Ray raises when a task is lost."""


class Straw:
    """As much of Ray as is used, in one process; `ends` says how tasks end, else they run."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.resources: dict[str, float] = {"CPU": 4.0}
        self.ends: dict[int, list[Any]] = {}
        self.there = False
        self.most = 0

    def init(self, **options: Any) -> None:
        self.there = True

    def shutdown(self) -> None:
        self.there = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": self.resources}, {"Alive": False, "Resources": {"CPU": 100.0}}]

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        def wrap(what: Any) -> Any:
            if isinstance(what, type):
                made = what()
                methods = {name: self._later(getattr(made, name)) for name in ("put", "take")}
                return SimpleNamespace(remote=lambda: SimpleNamespace(**methods))
            self.asked = options
            return self._later(what)

        return wrap

    def _later(self, what: Callable[..., Any]) -> Any:
        return SimpleNamespace(remote=lambda *given: Later(what, given))

    def wait(self, tasks: list[Later], timeout: float) -> tuple[list[Later], list[Later]]:
        self.most = max(self.most, len(tasks))
        return tasks[:1], tasks[1:]

    def get(self, task: Later) -> Any:
        seed = task.given[0]["seed"] if task.what is run_task else None
        if seed is not None and self.ends.get(seed):
            end = self.ends[seed].pop(0)
            if isinstance(end, Exception):
                raise end
            return end
        return task.what(*task.given)


class Later:
    """A task that was handed in."""

    def __init__(self, what: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.what, self.given = what, given


@pytest.fixture
def straw(monkeypatch: pytest.MonkeyPatch) -> Iterator[Straw]:
    made = Straw()
    monkeypatch.setattr(cluster, "_ray", lambda: made)
    yield made
    assert not made.there


def study(trial: Make, count: int) -> Study:
    return Study("small", tuple(trial(seed=seed) for seed in range(count)), "test")


def quick(trial: Trial, *, metrics_split: str, folder: Path | None, tell: Any) -> dict[str, Any]:
    assert folder is None
    tell(0.5)
    if trial.seed == 9:
        raise RuntimeError("seed 9\nis not to be had")
    row = {"key": trial.key, "seed": trial.seed, "metrics": {"average": 0.5}, "seconds": 1.0, "split": metrics_split}
    return {**row, "path": trial.config.data_path, "versions": {"ipg": "0"}}


def seeds(results: Path) -> list[int]:
    return [row["seed"] for row in read_rows(results / "trials.jsonl")]


def test_every_trial_is_a_task_and_the_driver_keeps_the_rows(straw: Straw, trial: Make, tmp_path: Path) -> None:
    place = Cluster(cpus=2, gpus=0.5)
    assert run_study(study(trial, 3), tmp_path, data_path="there", cluster=place, run=quick) == Tally(3, 0, 0)
    assert straw.asked == {"num_cpus": 2, "num_gpus": 0.5, "max_retries": RETRIES, "retry_exceptions": False}
    rows = read_rows(tmp_path / "trials.jsonl")
    assert [(row["seed"], row["split"], row["path"]) for row in rows] == [(n, "test", "there") for n in range(3)]
    assert {row["sharing"] for row in rows} == {2}
    assert run_study(study(trial, 3), tmp_path, cluster=place, run=quick) == Tally(3, 0, 0)
    assert seeds(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(("device", "has", "expected"), [("auto", 8, 1), ("auto", 0, 0), ("cpu", 8, 0), ("cuda", 1, 1)])
def test_gpus_are_used_where_there_are_any(
    straw: Straw, trial: Make, tmp_path: Path, device: str, has: int, expected: float
) -> None:
    straw.resources["GPU"] = has
    run_study(study(trial, 1), tmp_path, device=device, cluster=Cluster(), run=quick)
    assert (straw.asked["num_cpus"], straw.asked["num_gpus"]) == (1, expected)
    assert all("sharing" not in row for row in read_rows(tmp_path / "trials.jsonl"))


def test_a_trial_that_lacked_memory_on_a_part_of_a_gpu_is_given_a_whole_one(
    straw: Straw, trial: Make, tmp_path: Path
) -> None:
    def crowded(one: Trial, **given: Any) -> dict[str, Any]:
        if one.seed == 1 and straw.asked["num_gpus"] < 1:
            raise OutOfMemoryError(batch=128, pair_batch=None, fits=None, kept=False)
        return quick(one, **given)

    assert run_study(study(trial, 3), tmp_path, cluster=Cluster(gpus=0.5), run=crowded) == Tally(3, 0, 0)
    assert straw.asked["num_gpus"] == 1
    rows = read_rows(tmp_path / "trials.jsonl")
    assert [(row["seed"], row.get("sharing")) for row in rows] == [(0, 2), (2, 2), (1, None)]


def test_a_failing_trial_does_not_stop_the_others(
    straw: Straw, trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Study("small", (trial(seed=9), trial(seed=0)), "test")
    assert run_study(trials, tmp_path, cluster=Cluster(), run=quick) == Tally(1, 1, 0)
    error = Store(tmp_path).error_file(trials.trials[0].key)
    assert error.read_text(encoding="utf-8").startswith("Traceback (most recent call last):\n")
    assert "seed 9: failed: RuntimeError: seed 9 is not to be had (see " in capsys.readouterr().out


def test_a_trial_that_ray_has_lost_for_good_has_failed(straw: Straw, trial: Make, tmp_path: Path) -> None:
    straw.ends = {1: [RayError("the node\ndied")]}
    one = study(trial, 3)
    assert run_study(one, tmp_path, cluster=Cluster(), run=quick) == Tally(2, 1, 0)
    assert Store(tmp_path).error_file(one.trials[1].key).read_text(encoding="utf-8") == "the node\ndied\n"


def test_a_trial_whose_machine_was_shut_down_is_run_again(
    straw: Straw, trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = (None, None, None)
    straw.ends = {0: [stopped, stopped], 1: [stopped] * (RETRIES + 1)}
    assert run_study(study(trial, 3), tmp_path, cluster=Cluster(), run=quick) == Tally(2, 1, 0)
    assert sorted(seeds(tmp_path)) == [0, 2]
    assert f"failed: its machine was shut down {RETRIES + 1} times" in capsys.readouterr().out


def test_a_machine_with_another_version(straw: Straw, trial: Make, tmp_path: Path) -> None:
    row = {"key": "other", "versions": {"ipg": "0.0.9"}}
    straw.ends = {0: [(row, None, None)]}
    one = study(trial, 1)
    assert run_study(one, tmp_path, cluster=Cluster(), run=quick) == Tally(0, 1, 0)
    assert "another version of ipg: {'ipg': '0.0.9'}" in Store(tmp_path).error_file(one.trials[0].key).read_text()


def test_other_runners_are_respected(straw: Straw, trial: Make, tmp_path: Path) -> None:
    one = study(trial, 3)

    def meanwhile(given: Trial, **options: Any) -> dict[str, Any]:
        assert Store(tmp_path).is_held(given.key)
        return quick(given, **options)

    with Store(tmp_path).claim(one.trials[1].key):
        assert run_study(one, tmp_path, cluster=Cluster(), run=meanwhile) == Tally(2, 0, 1)
    assert run_study(one, tmp_path, cluster=Cluster(), run=meanwhile) == Tally(3, 0, 0)
    assert seeds(tmp_path) == [0, 2, 1]
    assert not any(Store(tmp_path).is_held(each.key) for each in one.trials)


def test_ray_is_given_so_many_at_once(straw: Straw, trial: Make, tmp_path: Path) -> None:
    straw.resources["CPU"] = 80.0
    run_study(study(trial, 100), tmp_path, cluster=Cluster(cpus=2), run=quick)
    assert straw.most == 80
    assert sorted(seeds(tmp_path)) == [n for n in range(100) if n != 9]


def test_a_cluster_that_is_too_small_is_told_of(
    straw: Straw, trial: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(study(trial, 1), tmp_path, cluster=Cluster(cpus=8, gpus=1), run=quick)
    said = "no machine of the cluster has 8 CPU and 1 GPU for a trial: waiting until one joins"
    assert said in capsys.readouterr().out


def test_an_interrupted_driver_leaves_the_cluster(straw: Straw, trial: Make, tmp_path: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    straw.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt, match="stopped, 0 of 2 trials are done; run the same command again"):
        run_study(study(trial, 2), tmp_path, cluster=Cluster(), run=quick)
    assert not Store(tmp_path).is_held(study(trial, 2).trials[0].key)


# -- the parts ---------------------------------------------------------------------------------------------------------


def task(trial: Trial, run: Any) -> tuple[Any, list[Any]]:
    told: list[Any] = []
    mailbox = SimpleNamespace(put=SimpleNamespace(remote=lambda *given: told.append(given)))
    return run_task({**vars(trial), "config": asdict(trial.config)}, "validation", run, mailbox), told


def test_a_task_rebuilds_its_trial_from_plain_values(trial: Make) -> None:
    one = trial("joint", seed=3, options={"order": "sum"}, data_path="here")
    got: list[Trial] = []

    def keep(given: Trial, **options: Any) -> dict[str, Any]:
        got.append(given)
        return quick(given, **options)

    (row, text, line), told = task(one, keep)
    assert got == [one]
    assert (row["key"], row["split"], text, line) == (one.key, "validation", None, None)
    assert told == [(one.key, 0.5)]


def test_a_task_tells_now_and_then(trial: Make) -> None:
    def talkative(given: Trial, *, tell: Any, **_: Any) -> dict[str, Any]:
        for share in range(1000):
            tell(share / 1000)
        return {}

    _, told = task(trial(), talkative)
    assert told == [(trial().key, 0.0)]


def test_a_task_that_is_stopped_has_nothing_to_tell(trial: Make) -> None:
    def stopped(given: Trial, **_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    assert task(trial(), stopped)[0] == (None, None, None)


def test_a_mailbox_keeps_the_last_word() -> None:
    box = Mailbox()
    for key, share in (("a", 0.1), ("b", 0.5), ("a", 0.2)):
        box.put(key, share)
    assert box.take() == {"a": 0.2, "b": 0.5}
    assert box.take() == {}


@pytest.mark.parametrize("given", [{"cpus": -1}, {"gpus": -0.5}])
def test_less_than_nothing_cannot_be_taken(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"a trial cannot take .* expected 0 or more"):
        Cluster(**given)  # type: ignore[arg-type]


def test_without_ray_one_is_told_how_to_get_it(trial: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'invariance-pair-guidance\[cluster\]'"):
        run_study(study(trial, 1), tmp_path, cluster=Cluster(), run=quick)


def test_nobody_answers(straw: Straw, trial: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no Ray cluster at 127\.0\.0\.1:1; start one with: ray start"):
        run_study(study(trial, 1), tmp_path, cluster=Cluster("127.0.0.1:1"), run=quick)


# -- a real one --------------------------------------------------------------------------------------------------------


@pytest.fixture
def namespace() -> list[str]:
    """A command that runs another in a network of its own."""
    if find_spec("ray") is None:
        pytest.skip("needs Ray")
    command = ["unshare", "-rn"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs network namespaces (unshare -rn)")
    return command


@pytest.mark.slow
def test_a_node_dies_midway(namespace: list[str], notes: Path, tmp_path: Path) -> None:
    """The second node is killed at its second trial: the first node runs that again, and nothing is lost or doubled."""
    script = Path(__file__).with_name("two_nodes.py")
    done = subprocess.run(
        [*namespace, sys.executable, "-W", "error", str(script), str(tmp_path / "results"), str(notes)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "Tally(done=7, failed=1, elsewhere=0)"
    rows = read_rows(tmp_path / "results" / "trials.jsonl")
    assert sorted(row["seed"] for row in rows) == list(range(1, 8))
    assert {row["metrics"]["average"] > 0 for row in rows} == {True}
    begun = {int(file.stem): file.read_text(encoding="utf-8").split() for file in notes.glob("*.txt")}
    again = [seed for seed, nodes in begun.items() if nodes == ["two", "one"]]
    assert len(again) == 1
    assert all(len(nodes) == 1 for seed, nodes in begun.items() if seed not in again)
    assert {row["seed"]: row["node"] for row in rows}[again[0]] == "one"
    errors = list((tmp_path / "results").rglob("error.txt"))
    assert [error.read_text(encoding="utf-8").strip().splitlines()[-1] for error in errors] == ["is not to be had"]
