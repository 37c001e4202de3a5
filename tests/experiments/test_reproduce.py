"""Reproductions are run: small versions, parts, within a limit, by another network; and listed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from experiments.reproduction_rows import SMALL, cells, keep, row
from rich.console import Console

from ipg.config import ConfigError
from ipg.data.errors import DataError
from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce import queue as reproduce_queue
from ipg.experiments.reproduce import rows as reproduce_rows
from ipg.experiments.reproduce import run as reproduce
from ipg.experiments.reproduce.list import listing
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import measure
from ipg.experiments.reproduce.run import Place
from ipg.experiments.runner import Tally
from ipg.experiments.study import Network, Study


@pytest.fixture
def small(small_reproduction: Path) -> Path:
    return small_reproduction


def runs_of(monkeypatch: pytest.MonkeyPatch, left: int = 0) -> list[tuple[str, list[tuple[int, Any]], float | None]]:
    """What the runner is asked for, in place of running it; so many trials of each study are left by the limit."""
    asked: list[tuple[str, list[tuple[int, Any]], float | None]] = []

    def run_study(study: Study, results: Mapping[str, Path], **given: Any) -> Tally:
        asked.append((study.name, [(trial.seed, trial.config.pairs) for trial in study.trials], given["limit"]))
        return Tally(len(study.trials) - left, 0, 0)

    monkeypatch.setattr(reproduce_queue, "run_study", run_study)
    monkeypatch.setattr(reproduce_rows, "data_obstacle", lambda dataset, path: None)
    monkeypatch.setattr(reproduce_rows, "obstacle", lambda config, path: None)
    return asked


def part(folder: Path, **given: Any) -> Place:
    return Place(folder / "results", folder / "out", console=Console(quiet=True), **given)


@pytest.mark.usefixtures("bars", "one_thread")
def test_the_small_version_runs_and_says_what_it_is(small: Path) -> None:
    place = Place(small / "results", small / "out", device="cpu", workers=1, console=Console(quiet=True))
    written = reproduce.reproduce("small", place, quick=True)
    assert written.failed == 0
    tables = {"table.md", "table.csv", "table.json", "table.tex", "report.html"}
    assert {path.name for path in written.files} == tables | {"small-colored_mnist.svg"}
    tex = (written.folder / "table.tex").read_text(encoding="utf-8")
    assert r"\begin{tabular}{lll" in tex
    assert "Quick version" in tex
    page = (written.folder / "table.md").read_text(encoding="utf-8")
    assert "**Quick version**" in page
    assert cells(page, "40 pairs")[0] == "bars"
    assert "difference" not in page
    assert "quick" in (written.folder / "table.csv").read_text(encoding="utf-8")
    assert "Quick version" in (written.folder / "small-colored_mnist.svg").read_text(encoding="utf-8")
    html = (written.folder / "report.html").read_text(encoding="utf-8")
    assert html.count("Quick version") >= 2  # in its lead and in the figure
    assert "<h1>Number of pairs</h1>" in html
    assert html.count('<figure class="plot alone"><svg') == 1
    assert '>bars</th><td class="words">40 pairs</td>' in html
    assert "**" not in html
    assert not (small / "results").exists()
    rows = (written.folder / "rows" / "small" / "trials.jsonl").read_text(encoding="utf-8")
    assert reproduce.reproduce("small", place, quick=True).failed == 0
    assert (written.folder / "rows" / "small" / "trials.jsonl").read_text(encoding="utf-8") == rows  # nothing twice


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "few_images")
@pytest.mark.parametrize("name", ["ablation_beyond", "corrupted_pairs", "accuracy_celeba", "runtime", "sparse"])
def test_small_versions_of_the_project_run(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "results", tmp_path / "out", device="cpu", workers=1, console=Console(quiet=True))
    written = reproduce.reproduce(name, place, quick=True)
    assert written.failed == 0
    page = (written.folder / "table.md").read_text(encoding="utf-8")
    assert "0 of 1" not in page


def test_missing_data_is_one_sentence_and_a_table_can_be_had_without(small: Path) -> None:
    place = Place(small / "results", small / "out", {"": str(small / "nowhere")}, console=Console(quiet=True))
    with pytest.raises(DataError, match=r"nothing of small can be run here: there is no MNIST at .*ipg data fetch"):
        reproduce.reproduce("small", place)
    tables = Place(small / "results", small / "out", run=False, console=Console(quiet=True))
    written = reproduce.reproduce("small", tables)
    assert "67.6 ± 1.5" in (written.folder / "table.md").read_text(encoding="utf-8")


def test_the_list_says_what_is_needed_measured_and_done(small: Path) -> None:
    found = load_reproduction("small")
    keep(small / "results", "small", [row(found.cells[0].trials[0], 0.66), row(found.cells[0].trials[1], 0.7)])
    text = "\n".join(listing(small / "results"))
    assert "small: Number of pairs (tab:pair-sensitivity)" in text
    assert "MNIST (`ipg data fetch mnist`)" in text
    assert "resnet50.safetensors" in text
    assert "ColoredMNIST 40 s on a machine (4 trials of 10 s, the mean of 2 measured)" in text
    assert "Waterbirds-100 not measured (2 trials)" in text
    assert "done   2 of 6 trials" in text


def test_a_part_is_run_and_the_table_tells_of_all(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = runs_of(monkeypatch)
    keep(small / "results", "small", [row(load_reproduction("small").cells[1].trials[0], 0.7, last=0.7)])
    written = reproduce.reproduce("small", part(small, only=("dataset=colored_mnist",), seeds=1))
    assert asked == [("small", [(0, 40)], None)]  # of seed 0 with 124 pairs there is a row
    page = (written.folder / "table.md").read_text(encoding="utf-8")
    assert cells(page, "124 pairs")[11] == "1 of 2"
    assert cells(page, "IPG, ResNet-50")[-1].startswith("not run")
    assert not written.left
    with pytest.raises(ConfigError, match="of pairs there are"):
        reproduce.reproduce("small", part(small, only=("pairs=7",)))
    with pytest.raises(ConfigError, match="--seeds 1: no trial is left that fits seed=1"):
        reproduce.reproduce("small", part(small, only=("seed=1",), seeds=1))


def test_what_the_limit_leaves_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = runs_of(monkeypatch, left=1)
    written = reproduce.reproduce("small", part(small, limit=60.0))
    assert written.left
    ((_, trials, limit),) = asked
    assert trials == [(0, 40), (0, 124), (0, "pairs-124"), (1, 40), (1, 124), (1, "pairs-124")]
    assert limit is not None
    assert 0 < limit <= 60
    asked = runs_of(monkeypatch)
    assert not reproduce.reproduce("small", part(small, limit=60.0)).left
    assert len(asked) == 1


def test_what_has_no_trials_is_chosen_by_its_data_alone() -> None:
    assert reproduce_plan.chosen_datasets(["a", "b", "a"], ["dataset=b"]) == ["b"]
    assert reproduce_plan.chosen_datasets(["a", "b"], []) == ["a", "b"]
    for rule in ("seed=1", "dataset=c"):
        with pytest.raises(ConfigError, match="expected dataset=NAME, one or several of a, b"):
            reproduce_plan.chosen_datasets(["a", "b"], [rule])


def test_another_network_is_run_and_its_rows_are_told_apart(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's, for those who have its weights."""
    text = SMALL.replace('network = "resnet50"\n', "")
    (small / "reproductions" / "01-small.toml").write_text(text, encoding="utf-8")
    network = Network("resnet50.safetensors", "resnet50")
    before, found = load_reproduction("small"), reproduce_plan.with_network(load_reproduction("small"), network)
    assert [cell.trials for cell in found.cells[:2]] == [cell.trials for cell in before.cells[:2]]  # ColoredMNIST
    mine, theirs = (next(c for c in known.cells if c.dataset == "waterbirds100") for known in (before, found))
    assert theirs.by_the_paper
    assert not mine.by_the_paper
    rows = [row(theirs.trials[0], 0.8)]
    assert [len(entry.rows) for entry in measure(found, rows) if entry.cell is theirs] == [1]
    assert not any(entry.rows for entry in measure(before, rows))
    asked = runs_of(monkeypatch)
    written = reproduce.reproduce("small", part(small, network=network, only=("dataset=waterbirds100",)))
    assert len(asked) == 1
    page = (written.folder / "table.md").read_text(encoding="utf-8")
    assert "network `resnet50`, weights `resnet50.safetensors`, in place of" in page
    with pytest.raises(ValueError, match="no trial of small starts from weights"):
        reproduce.reproduce("small", part(small, network=network), quick=True)
