"""The list of reproductions that are named: what is missing of each, as the command without --list would run it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from experiments.reproduction_rows import keep, row
from rich.console import Console

from ipg.config import ConfigError
from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce import queue as reproduce_queue
from ipg.experiments.reproduce import rows as reproduce_rows
from ipg.experiments.reproduce.list import named_listing, needs
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.run import Place, reproduce_all
from ipg.experiments.runner import Tally
from ipg.experiments.study import Network, Study

SEARCH = """
title = "A search"
claim = "Something."
kind = "search"
[settings]
trials = 20
studies = ["colored_mnist", "waterbirds100"]
"""
SECOND = """
title = "Another table"
claim = "Something."
seeds = 3
[[arm]]
name = "Plain"
datasets = ["colored_mnist_clean"]
protocol = "paper"
method = "erm"
[[arm]]
name = "Forty again"
datasets = ["colored_mnist"]
protocol = "paper"
method = "ipg"
config = { pairs = 40 }
"""


@pytest.fixture
def folder(small_reproduction: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three reproductions, all of which can be run here."""
    for name, text in (("02-second", SECOND), ("03-searched", SEARCH)):
        (reproduce_plan.FOLDER / f"{name}.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(reproduce_rows, "data_obstacle", lambda dataset, path: None)
    monkeypatch.setattr(reproduce_rows, "obstacle", lambda config, path: None)
    return small_reproduction


def place(folder: Path, **given: Any) -> Place:
    console = Console(file=io.StringIO(), width=200)
    return Place(folder / "results", folder / "out", **{"console": console, **given})


def lines(folder: Path, *names: str, quick: bool = False, **given: Any) -> list[str]:
    return list(named_listing(names, place(folder, **given), quick=quick))


def lacking(found: list[str]) -> list[str]:
    return [line.removeprefix("  missing  ") for line in found if line.startswith("  missing  ")]


def test_those_that_are_named_alone(folder: Path) -> None:
    found = lines(folder, "second", "small")
    assert [line.partition(":")[0] for line in found if not line.startswith(" ")][:2] == ["second", "small"]
    assert not any("--quick" in line for line in found)
    with pytest.raises(ConfigError, match="there is nothing to reproduce called 'pears'; there are small, second"):
        lines(folder, "small", "pears")


def test_a_line_for_every_arm_that_lacks_something(folder: Path) -> None:
    cells = load_reproduction("small").cells
    keep(folder / "results", "small", [row(trial, 0.7) for trial in (*cells[0].trials, cells[1].trials[0])])
    found = lines(folder, "small")
    assert "  done   3 of 6 trials" in found
    assert lacking(found) == [
        "ColoredMNIST: 124 pairs (1 of 2: seed 1)",
        "Waterbirds-100: IPG, ResNet-50 (2 of 2: seeds 0 and 1)",
    ]
    assert found[-1] == "Without --list 3 trials are run."


def test_the_part_that_is_asked_for(folder: Path) -> None:
    keep(folder / "results", "small", [row(load_reproduction("small").cells[0].trials[0], 0.7)])
    found = lines(folder, "small", only=("dataset=colored_mnist",), seeds=1)
    assert lacking(found) == ["ColoredMNIST: 124 pairs (1 of 1: seed 0)"]
    assert "  done   1 of 6 trials" in found
    assert found[-1] == "Without --list 1 trial is run."
    with pytest.raises(ConfigError, match="of pairs there are"):
        lines(folder, "small", only=("pairs=7",))


def test_nothing_is_missing(folder: Path) -> None:
    keep(folder / "results", "x", [row(trial, 0.7) for trial in load_reproduction("second").trials])
    found = lines(folder, "second")
    assert lacking(found) == []
    assert found[-1] == "Nothing is left to run."


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"seeds": 1},
        {"only": ("dataset=colored_mnist",)},
        {"only": ("pairs=40",), "seeds": 2},
        {"network": Network("mine.safetensors", "resnet18")},
    ],
)
def test_what_is_counted_is_what_is_run(
    given: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that two tables ask for stands under both and is made once."""
    ran: list[int] = []

    def run_study(study: Study, results: Mapping[str, Path], **_: Any) -> Tally:
        ran.append(len(study.trials))
        return Tally(len(study.trials), 0, 0)

    monkeypatch.setattr(reproduce_queue, "run_study", run_study)
    keep(folder / "results", "small", [row(load_reproduction("small").cells[1].trials[0], 0.7)])
    names = ("small",) if "network" in given else ("small", "second")
    found = lines(folder, *names, **given)
    reproduce_all(names, place(folder, **given))
    assert found[-1] == f"Without --list {sum(ran)} trials are run."
    if not given:
        assert "ColoredMNIST: 40 pairs (2 of 2: seeds 0 and 1)" in lacking(found)
        assert "ColoredMNIST: Forty again (3 of 3: seeds 0 to 2)" in lacking(found)


def test_what_cannot_be_run_here_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reproduce_rows, "data_obstacle", lambda name, path: "no birds" if name.startswith("water") else None
    )
    found = lines(folder, "small")
    assert "Waterbirds-100: IPG, ResNet-50 (2 of 2: seeds 0 and 1)" in lacking(found)
    assert found[-2:] == ["Without --list 4 trials are run.", "not run: 2 trials, for no birds"]
    monkeypatch.setattr(reproduce_rows, "data_obstacle", lambda name, path: "no data")
    assert lines(folder, "small")[-2:] == ["Nothing of it can be run here.", "not run: 6 trials, for no data"]


def test_the_small_version_has_rows_of_its_own(folder: Path) -> None:
    found = lines(folder, "small", quick=True)
    assert "  done   0 of 1 trials" in found
    assert lacking(found) == ["bars: 40 pairs (1 of 1: seed 0)"]


def test_time_is_told_of_the_machine_that_measured_most(folder: Path) -> None:
    """Or the seconds of a few short trials elsewhere would be those of all."""
    cells = load_reproduction("small").cells
    rows = [row(trial, 0.7) for trial in (*cells[0].trials, cells[1].trials[0])]
    rows[0] |= {"hardware": "a slow machine"}
    keep(folder / "results", "small", rows)
    (takes,) = [line for line in lines(folder, "small") if line.startswith("  takes")]
    assert takes.count("ColoredMNIST") == 1
    assert "the mean of 2 measured" in takes
    assert "slow" not in takes


def test_searches_by_data_set(folder: Path) -> None:
    best = folder / "results" / "searched" / "colored_mnist" / "best.toml"
    best.parent.mkdir(parents=True)
    best.write_text("alpha = 0.1\n", encoding="utf-8")
    found = lines(folder, "searched")
    assert "  done   1 of 2 searches" in found
    assert lacking(found) == ["Waterbirds-100: its search"]
    assert found[-1] == "  missing  Waterbirds-100: its search"
    assert lacking(lines(folder, "searched", only=("dataset=colored_mnist",))) == []


def test_a_search_that_was_stopped_is_not_done(folder: Path) -> None:
    best = folder / "results" / "searched" / "colored_mnist" / "best.toml"
    best.parent.mkdir(parents=True)
    for trials, done in ((8, 0), (20, 1)):
        text = f"# ipg on colored_mnist: the best of {trials} trials of `ipg search`.\nalpha = 0.1\n"
        best.write_text(text, encoding="utf-8")
        found = lines(folder, "searched")
        assert f"  done   {done} of 2 searches" in found
        rest = [] if done else ["ColoredMNIST: the rest of its search (8 of 20 trials done)"]
        assert lacking(found) == [*rest, "Waterbirds-100: its search"]


def test_files_beside_the_data_are_needed_by_searches_and_galleries(folder: Path) -> None:
    gallery = 'title = "Pairs"\nclaim = "x"\nkind = "galleries"\n[[settings.gallery]]\ndataset = "waterbirds100"\n'
    (reproduce_plan.FOLDER / "04-shown.toml").write_text(f'{gallery}files = ["pairs-388"]\n', encoding="utf-8")
    birds = "Waterbirds-100 (docs/data.md says where to get it)"
    assert needs(load_reproduction("shown")) == f"{birds}; pairs-388"
    files = "mobilenetv2_100.safetensors; pairs-124"
    assert needs(load_reproduction("searched")) == f"MNIST (`ipg data fetch mnist`); {birds}; {files}"


def test_one_that_fits_nothing_is_passed_over_among_several(folder: Path) -> None:
    asked = place(folder, only=("dataset=waterbirds100",))
    found = list(named_listing(["small", "second"], asked, quick=False))
    assert not any(line.startswith("second") for line in found)
    assert isinstance(asked.console.file, io.StringIO)
    assert asked.console.file.getvalue().startswith("second is passed over: no trial of second fits --only")
