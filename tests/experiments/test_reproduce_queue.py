"""Several reproductions in one queue: the order, every run once, rows where they belong, and what is left."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipg.config import ConfigError
from ipg.data.errors import DataError
from ipg.experiments import runner
from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce import queue as reproduce_queue
from ipg.experiments.reproduce import rows as reproduce_rows
from ipg.experiments.reproduce import run as reproduce_run
from ipg.experiments.reproduce.run import Place, Written, reproduce_all
from ipg.experiments.runner import Tally
from ipg.experiments.store import read_rows
from ipg.experiments.study import Network, Study, Trial

HEAD = 'title = "A table"\nclaim = "Something."\nseeds = 2\n'
ARM = """
[[arm]]
name = "{name}"
datasets = ["{data}"]
protocol = "paper"
method = "{method}"
config = {{ {config} }}
"""


def arm(name: str, config: str = "", *, method: str = "ipg", data: str = "colored_mnist") -> str:
    return ARM.format(name=name, config=config, method=method, data=data)


FILES = {
    "01-first": HEAD + arm("forty", "pairs = 40") + arm("more", "pairs = 124"),
    "02-second": HEAD + arm("plain", method="erm", data="colored_mnist_clean") + arm("again", "pairs = 40"),
    "03-timed": HEAD + "alone = true\n" + arm("forty", "pairs = 40"),
    "04-curves": HEAD + 'kind = "dynamics"\nmetrics = ["task_loss"]\n' + arm("forty", "pairs = 40"),
    "05-drawn": HEAD + 'kind = "schematic"\n[settings]\nalpha = 0.5\ntau = 0.1\n',
    "06-searched": HEAD + 'kind = "search"\n[settings]\nstudies = ["colored_mnist"]\n',
}


class Stub:
    """A trial that says that it ran, and has a row at once; some fail."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int, Any]] = []
        self.paths: dict[str, str | None] = {}
        self.fails: Callable[[Trial], bool] = lambda trial: False

    def __call__(self, trial: Trial, *, metrics_split: str, kind: str | None = None, **_: Any) -> dict[str, Any]:
        self.ran.append((trial.study, trial.seed, trial.config.pairs if trial.method == "ipg" else trial.method))
        self.paths[trial.dataset] = trial.config.data_path
        if self.fails(trial):
            raise RuntimeError("not to be had")
        shares = {"average": 0.7, "worst_group": 0.6, "group_mean": 0.7, "task_loss": 0.6, "groups": {}}
        return {
            **trial.identity,
            "config": {name: value for name, value in trial.config.flat().items() if name not in ("seed", "data_path")},
            "split": metrics_split,
            **({} if kind is None else {"kind": kind, "curves": {}}),
            "metrics": shares,
            "last_metrics": shares,
            "seconds": 10.0,
            "hardware": "a machine",
            "versions": {"python": "3.99", "torch": "9.9"},
            "commit": "0123456789abcdef",
            "date": "2026-01-01",
        }


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small reproductions as the only ones; all data is there."""
    folder = tmp_path / "reproductions"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(reproduce_plan, "FOLDER", folder)
    monkeypatch.setattr(reproduce_rows, "data_obstacle", lambda dataset, path: None)
    return tmp_path


@pytest.fixture
def stub(files: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """In the place of all training."""
    made = Stub()
    monkeypatch.setattr(reproduce_queue, "run_trial", made)
    monkeypatch.setattr(reproduce_queue, "run_timed", made)
    monkeypatch.setattr(
        "ipg.experiments.reproduce.dynamics.run_dynamics", lambda trial, **given: made(trial, kind="dynamics", **given)
    )
    monkeypatch.setattr("ipg.experiments.reproduce.figures._curves", lambda reproduction, rows: {})
    return made


@pytest.fixture
def place(files: Path) -> Place:
    console = Console(file=io.StringIO(), width=400)
    return Place(files / "results", files / "out", device="cpu", workers=1, console=console)


def said(place: Place) -> str:
    assert isinstance(place.console.file, io.StringIO)
    return place.console.file.getvalue()


def page(written: Written) -> str:
    return (written.folder / "table.md").read_text(encoding="utf-8")


def test_seed_by_seed_in_the_order_of_the_names_and_every_run_once(stub: Stub, place: Place) -> None:
    written = reproduce_all(["second", "first"], replace(place, data_paths={"": "/a", "colored_mnist_clean": "/b"}))
    once = [("second", "erm"), ("second", 40), ("first", 124)]
    assert stub.ran == [(study, seed, what) for seed in (0, 1) for study, what in once]
    assert stub.paths == {"colored_mnist": "/a", "colored_mnist_clean": "/b"}
    assert [one.folder.name for one in written] == ["second", "first"]
    assert all(
        "not run" not in page(one) and "1 of 2" not in page(one) for one in written
    )  # one's rows are the other's
    for study, count in (("second", 4), ("first", 2)):
        rows = read_rows(place.results / study / "trials.jsonl")
        assert [row["study"] for row in rows] == [study] * count
    assert "second and first: 6 trials, 0 done" in said(place)
    assert "[1/6] second, colored_mnist_clean: erm (paper)" in said(place)
    stub.ran.clear()
    reproduce_all(["first", "second"], place)
    assert stub.ran == []


def test_one_pool_of_workers_for_all(stub: Stub, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[tuple[int, int | None]] = []
    real = runner.place

    @contextmanager
    def counted(job: Any, view: Any, trials: int, device: str, workers: int | None, cluster: Any) -> Iterator[Any]:
        pools.append((trials, workers))
        with real(job, view, trials, device, 1, cluster) as where:
            yield where

    monkeypatch.setattr(runner, "place", counted)
    monkeypatch.setattr(reproduce_queue, "suitable_workers", lambda device: 2)
    reproduce_all(["timed", "curves", "first", "second"], replace(place, workers=4))
    # those in full batch have their own, and so has what is timed, with a GPU for each
    assert pools == [(6, 4), (2, 4), (2, 2)]
    assert [study for study, _, _ in stub.ran[6:]] == ["curves", "curves", "timed", "timed"]
    assert [read_rows(place.results / name / "trials.jsonl")[0].get("kind") for name in ("curves", "timed")] == [
        "dynamics",
        None,
    ]


def test_a_failing_trial_does_not_stop_the_others(stub: Stub, place: Place) -> None:
    stub.fails = lambda trial: trial.config.pairs == 40 and trial.method == "ipg" and trial.seed == 0
    first, second, timed = reproduce_all(["first", "second", "timed"], place)
    assert (first.failed, second.failed, timed.failed) == (1, 1, 1)  # the second one asked for the same run
    assert len(stub.ran) == 8
    assert not any(one.left for one in (first, second, timed))
    (line,) = [line for line in said(place).splitlines() if "first, colored_mnist" in line and "failed" in line]
    assert str(place.results / "first" / "trials") in line
    stub.fails = lambda trial: trial.method == "erm"
    first, second = reproduce_all(["first", "second"], place)
    assert (first.failed, second.failed) == (0, 0)  # what failed is tried again, and what is done is not


def test_the_limit_is_for_all_together(files: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], float]] = []

    def run_study(study: Study, results: Mapping[str, Path], **given: Any) -> Tally:
        asked.append(([trial.study for trial in study.trials], given["limit"]))
        return Tally(len(study.trials) - (study.name == lacking), 0, 0)

    monkeypatch.setattr(reproduce_queue, "run_study", run_study)
    monkeypatch.setitem(reproduce_run._OTHERS, "search", lambda *given: asked.append(("search", given[1].time_left)))
    names, lacking = ["timed", "first", "searched"], "first"
    written = reproduce_all(names, replace(place, limit=60.0))
    assert [one.left for one in written if one] == [True, True]  # the timed ones are not begun
    assert all((one.folder / "table.md").exists() for one in written if one)
    assert [names for names, _ in asked] == [["first"] * 4, "search"]
    asked.clear()
    lacking = "timed"
    reproduce_all(names, replace(place, limit=60.0))
    limits = [limit for _, limit in asked]
    assert len(limits) == 3
    assert 60 >= limits[0] > limits[1] > limits[2] > 0


def test_when_the_time_is_over_tables_tell_of_what_there_is(stub: Stub, place: Place) -> None:
    """A table with all its rows has nothing left; one that waits for another's run has."""

    def over(trial: Trial) -> bool:
        if trial.seed == 1 and trial.config.pairs == 40:
            time.sleep(60)
        return False

    reproduce_all(["curves"], place)
    stub.fails = over
    clean = replace(place, only=("dataset=colored_mnist",), limit=2.0)
    curves, first, second = reproduce_all(["curves", "first", "second"], clean)
    assert (curves.left, first.left, second.left) == (False, True, True)
    assert "1 of 2" in page(first)
    assert len(stub.ran) == 2 + 3  # the last of them is begun
    stub.fails = lambda trial: False
    first, second = reproduce_all(["first", "second"], clean)
    assert (first.left, second.left) == (False, False)


def test_what_only_leaves_nothing_of_is_passed_over(stub: Stub, place: Place) -> None:
    only = replace(place, only=("pairs=124",), seeds=1, limit=60.0)
    (first,) = reproduce_all(["second", "first", "drawn"], only)
    assert (first.folder.name, stub.ran) == ("first", [("first", 0, 124)])
    assert "second is passed over: no trial of second fits --only pairs=124" in said(place)
    assert "drawn is passed over: --only: drawn has no trials" in said(place)
    both = replace(place, only=("dataset=colored_mnist_clean,colored_mnist", "method=erm,ipg"), run=False)
    assert len(reproduce_all(["second", "first"], both)) == 2  # though the first has neither that data nor that method
    with pytest.raises(ConfigError, match="no trial has 7"):
        reproduce_all(["second", "first"], replace(place, only=("pairs=7",)))
    with pytest.raises(ConfigError, match="nothing to reproduce called 'third'"):
        reproduce_all(["first", "third"], place)
    assert len(stub.ran) == 1


def test_another_network_is_for_those_that_start_from_weights(stub: Stub, place: Place) -> None:
    with pytest.raises(ValueError, match="no trial of first starts from weights"):
        reproduce_all(["first", "second"], replace(place, network=Network("resnet50.safetensors", "resnet50")))
    assert said(place) == ""


def test_all_is_everything_but_searches(stub: Stub, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def search(reproduction: Any, place: Place, folder: Path) -> Written:
        searched.append(len(stub.ran))
        return Written(folder, ())

    monkeypatch.setitem(reproduce_run._OTHERS, "search", search)
    written = reproduce_all(["all"], replace(place, seeds=1, limit=600.0))
    assert [one.folder.name for one in written] == ["first", "second", "timed", "curves", "drawn"]
    assert [study for study, _, _ in stub.ran] == ["first", "first", "second", "curves", "timed"]
    assert (written[-1].folder / "schematic.svg").exists()
    assert searched == []
    written = reproduce_all(["searched", "all"], place)
    assert [one.folder.name for one in written][-2:] == ["searched", "drawn"]
    assert searched == [len(stub.ran)]  # after the queue


def test_tables_alone_run_nothing(stub: Stub, place: Place) -> None:
    written = reproduce_all(["first", "second"], replace(place, run=False))
    assert stub.ran == []
    assert all("0 of 2" in page(one) for one in written)


def test_data_that_is_missing_stops_nothing_but_itself(
    stub: Stub, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        reproduce_rows, "data_obstacle", lambda dataset, path: "no clean" if "clean" in dataset else None
    )
    reproduce_all(["first", "second"], place)
    assert len(stub.ran) == 4
    assert "not run: 2 trials, for no clean" in said(place)
    monkeypatch.setattr(reproduce_rows, "data_obstacle", lambda dataset, path: "no data")
    with pytest.raises(DataError, match="nothing of curves and timed can be run here: no data"):
        reproduce_all(["curves", "timed"], place)


def test_small_versions_keep_their_own_rows(stub: Stub, place: Place) -> None:
    """What one has run is not seen by the other, so that each folder holds all that its table tells of."""
    first, second = reproduce_all(["first", "second"], replace(place, data_paths={"": "/nowhere"}), quick=True)
    assert len(stub.ran) == 8
    assert stub.paths == {"colored_fashion_noisy": None, "colored_fashion": None}
    for one, name in ((first, "first"), (second, "second")):
        assert len(read_rows(one.folder / "rows" / name / "trials.jsonl")) == 4
        assert "**Quick version**" in page(one)
    assert not place.results.exists()
