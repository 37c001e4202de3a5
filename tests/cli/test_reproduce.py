"""`ipg reproduce`: what there is, what it needs, and tables without running anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ipg.cli.reproduce import _paths
from ipg.experiments.cluster import Cluster
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.study import Study


def test_the_list_names_everything_and_how_it_stands(ipg, tmp_path: Path) -> None:
    done = ipg("reproduce", "--list", "--results", str(tmp_path))
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert re.search(r"^  takes  \S.*\n {9}\S", done.out, re.MULTILINE)
    for name in ("accuracy_colored_mnist", "pairs", "every_alpha", "theory"):
        assert f"\n{name}: " in f"\n{done.out}"
    assert "not measured" in done.out
    said = " ".join(done.out.split())
    assert "on NVIDIA H200 (" in said  # as the package tells
    assert re.search(r"done 0 of \d+ trials here, [1-9]\d* in the project's own results", said)


def test_the_list_of_those_that_are_named(ipg, tmp_path: Path) -> None:
    where = ("--list", "--results", tmp_path / "r", "--data-path", "/nowhere/mnist.npz")
    done = ipg("reproduce", "label_noise", "schematic", *where)
    assert done.code == 0
    assert re.findall(r"^(\w+): ", done.out, re.MULTILINE) == ["label_noise", "schematic"]
    assert (
        "\n  missing  ColoredMNIST, no label noise: ERM, no label noise (10 of 10: seeds 0\n           to 9)\n"
        in done.out
    )
    said = " ".join(done.out.split())
    assert "done 0 of 40 trials here, " in said
    told = "Nothing of it can be run here. not run: 40 trials, for there is no MNIST at /nowhere/mnist.npz"
    assert told in said
    part = ipg("reproduce", "label_noise", *where, "--seeds", 2, "--only", "dataset=colored_mnist_clean")
    assert "(2 of 2: seeds 0 and 1)" in " ".join(part.out.split())
    assert "missing  ColoredMNIST: " not in part.out
    assert not (tmp_path / "r").exists()


def test_the_list_of_all(ipg, tmp_path: Path) -> None:
    plain, named = (ipg("reproduce", *given, "--list", "--results", tmp_path) for given in ((), ("all",)))
    assert plain.out == named.out
    assert "  missing  " not in plain.out


def test_a_table_is_made_without_running_anything(ipg, tmp_path: Path) -> None:
    done = ipg("reproduce", "label_noise", "--table-only", "--results", str(tmp_path), "--output", str(tmp_path / "o"))
    assert done.code == 0
    page = (tmp_path / "o" / "label_noise" / "table.md").read_text(encoding="utf-8")
    assert "97.5 ± 0.6" in page
    assert "not run" in page
    assert not (tmp_path / "label_noise").exists()


def test_a_row_without_its_commit_is_one_clear_line(ipg, tmp_path: Path) -> None:
    trial = load_reproduction("label_noise").trials[0]
    row = {**trial.identity, "config": {}, "split": "test", "metrics": {}, "hardware": "h", "versions": {"torch": "9"}}
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "trials.jsonl").write_text(json.dumps({**row, "date": "2026"}) + "\n", encoding="utf-8")
    done = ipg("reproduce", "label_noise", "--table-only", "--results", tmp_path, "--output", tmp_path / "o")
    assert done.code == 2
    assert "does not name its commit, so that no table may quote it" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_tables_alone_write_nothing_to_the_results(ipg, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    where = ("--table-only", "--results", results, "--output", tmp_path / "o")
    done = ipg("reproduce", "theory", "schematic", "galleries", *where)
    assert done.code == 0
    assert " ".join(done.out.split()).count("nothing is kept of it") == 3
    assert list(results.iterdir()) == []
    assert not (tmp_path / "o").exists()


def test_the_schematic_is_drawn(ipg, tmp_path: Path) -> None:
    done = ipg("reproduce", "schematic", "--output", str(tmp_path))
    assert done.code == 0
    assert (tmp_path / "schematic" / "schematic.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to reproduce"),
        (["pears"], "there is nothing to reproduce called 'pears'"),
        (["pears", "--list"], "there is nothing to reproduce called 'pears'"),
        (["all", "pears", "--list"], "there is nothing to reproduce called 'pears'"),
        (["pairs", "--list", "--only", "dataset=mnist"], "of dataset there are"),
        (["label_noise", "--data-path", "/nowhere/mnist.npz"], "there is no MNIST at /nowhere/mnist.npz"),
        (["schematic", "--seeds", "1", "--limit", "1m"], "--seeds and --limit: schematic has no trials"),
        (["galleries", "--only", "seed=1"], "expected dataset=NAME"),
        (["pairs", "--cpus", "2"], "--cpus and --gpus say what a trial takes of a cluster; give --cluster"),
        (["pairs", "--cluster", "auto", "--workers", "2"], "--workers is for one machine"),
        (["hyperparameters", "--cluster", "auto"], "--cluster: hyperparameters has no trials of a study"),
        (["pairs", "--limit", "soon"], "--limit soon: expected a time such as 90s"),
        (["pairs", "--only", "dataset=mnist"], "of dataset there are"),
        (["pairs", "--data-path", "a=/x", "--data-path", "a=/y"], "there is one already for a"),
    ],
)
def test_mistakes_are_one_clear_line(ipg, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = ipg("reproduce", *arguments, "--results", str(tmp_path / "r"), "--output", str(tmp_path / "o"))
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_part_within_a_limit(ipg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left in time is told by the exit status, for the queue to try again."""
    from ipg.experiments.reproduce import run

    places: list[run.Place] = []

    def reproduce_all(names: list[str], place: run.Place, *, quick: bool) -> list[run.Written]:
        assert names == ["alpha_tau", "pairs"]
        places.append(place)
        return [run.Written(tmp_path, ()), run.Written(tmp_path, (), left=True)]

    monkeypatch.setattr(run, "reproduce_all", reproduce_all)
    done = ipg("reproduce", "alpha_tau", "pairs", *("--only", "dataset=colored_mnist", "--seeds", 3, "--limit", "9m"))
    assert done.code == 75
    (place,) = places
    assert (place.only, place.seeds, place.limit) == (("dataset=colored_mnist",), 3, 540)


@pytest.mark.parametrize(
    ("arguments", "cluster"),
    [
        (["--workers", "2"], None),
        (["--cluster", "auto"], Cluster("auto", 1, None)),
        (["--cluster", "head:6379", "--cpus", "4", "--gpus", "0.5"], Cluster("head:6379", 4, 0.5)),
    ],
)
def test_trials_are_run_on_a_cluster(
    ipg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], cluster: Cluster | None
) -> None:
    from ipg.experiments.reproduce import queue, rows
    from ipg.experiments.runner import Tally

    given: list[dict[str, Any]] = []

    def run_study(study: Study, results: dict[str, Path], **options: Any) -> Tally:
        given.append(options)
        return Tally(len(study.trials), 0, 0)

    monkeypatch.setattr(queue, "run_study", run_study)
    monkeypatch.setattr(rows, "data_obstacle", lambda dataset, path: None)
    command = ("reproduce", "label_noise", "--results", tmp_path / "r", "--output", tmp_path / "o")
    assert ipg(*command, *arguments).code == 0
    assert [options["cluster"] for options in given] == [cluster]


def test_paths_count_for_one_data_set_or_for_all() -> None:
    assert _paths(["/data/x=1", "colored-mnist=/m.npz"]) == {"": "/data/x=1", "colored_mnist": "/m.npz"}
    with pytest.raises(ValueError, match="all data sets"):
        _paths(["/a", "/b"])
