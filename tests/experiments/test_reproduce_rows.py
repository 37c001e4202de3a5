"""Rows are found again: which count for a cell, and which trials are left to run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments.reproduction_rows import SMALL, cells, keep, row

from ipg.experiments.arms import same_run
from ipg.experiments.reproduce import rows as reproduce_rows
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure, missing
from ipg.experiments.reproduce.table import table_of
from ipg.experiments.tables.rows import ProvenanceError


@pytest.fixture
def small(small_reproduction: Path) -> Path:
    return small_reproduction


def test_rows_of_any_study_count_where_they_tell_of_the_same_run(small: Path) -> None:
    found = load_reproduction("small")
    one, two = found.cells[0].trials
    rows = [
        row(one, 0.67, study="another", protocol="of another name", key="k1"),
        row(two, 0.69, config={**row(two, 0)["config"], "alpha": 0.25}),  # another alpha: another run
        row(two, 0.71, split="search"),
    ]
    keep(small / "results", "another", rows)
    measured = measure(found, all_rows(small / "results"))
    assert [entry.values("average") for entry in measured] == [[0.67], [], [], []]
    left = missing(found, all_rows(small / "results"), {"": str(small / "nowhere")})
    assert len(left.obstacles) == 1 + 2 + 2
    assert any("there is no MNIST" in why for why in left.obstacles.values())


def test_of_the_same_run_made_twice_the_earliest_counts(small: Path) -> None:
    """Whatever its study is called: a figure does not change for the better when a run is made again."""
    found = load_reproduction("small")
    one = found.cells[0].trials[0]
    rows = [
        row(one, 0.73, study="again", key="k1", date="2026-11-17T23:00:00+00:00"),
        row(one, 0.67, study="before", key="k2", date="2026-11-15T09:00:00+00:00"),
    ]
    keep(small / "results", "again", rows[:1])
    keep(small / "results", "before", rows[1:])
    assert measure(found, all_rows(small / "results"))[0].values("average") == [0.67]


def test_rows_of_other_studies_do_not_count_for_what_stands_alone(small: Path) -> None:
    text = SMALL.replace("seeds = 2\n[[arm]]", "seeds = 2\nalone = true\n[[arm]]")
    (small / "reproductions" / "01-small.toml").write_text(text, encoding="utf-8")
    found = load_reproduction("small")
    one, two = found.cells[0].trials
    rows = [row(one, 0.67, study="another", key="k1"), row(two, 0.7)]
    assert measure(found, rows)[0].values("average") == [0.7]
    assert one.key in missing(found, rows, {"": str(small / "nowhere")}).obstacles
    assert measure(replace(found, alone=False), rows)[0].values("average") == [0.67, 0.7]


def test_every_auto_is_a_pace_of_its_own(small: Path) -> None:
    """Rows with a fixed k do not count for it, as they do for what `auto` comes to elsewhere."""
    trial = load_reproduction("small").cells[0].trials[0]
    fixed = row(trial, 0.5)
    open_ = replace(trial, config=trial.config.with_changes(precision="auto"))
    following = replace(trial, config=trial.config.with_changes(every="auto"))
    assert same_run(fixed, open_)
    assert not same_run(fixed, following)
    assert same_run(row(following, 0.5), following)


@pytest.mark.parametrize("commit", [None, ""])
def test_a_row_that_does_not_say_where_it_comes_from_enters_no_table(small: Path, commit: str | None) -> None:
    trials = load_reproduction("small").cells[0].trials
    keep(small / "results", "small", [row(trials[0], 0.66), row(trials[1], 0.7, commit=commit)])
    with pytest.raises(ProvenanceError, match=r"small/trials\.jsonl: the row of ipg, seed 1, does not name its commit"):
        all_rows(small / "results")


@pytest.mark.parametrize(
    ("name", "value"),
    [("dataset", ["colored_mnist"]), ("seed", None), ("key", 3), ("split", None), ("metrics", {"average": "0.7"}),
     ("metrics", {"average": float("nan")}), ("config", []), ("hardware", 7)],
)  # fmt: skip
def test_a_row_that_no_trial_has_written_enters_no_table(small: Path, name: str, value: Any) -> None:
    trials = load_reproduction("small").cells[0].trials
    wrong = {**row(trials[1], 0.7), name: value}
    keep(small / "results", "small", [row(trials[0], 0.66), wrong])
    says = rf"small/trials\.jsonl: the row of ipg, seed {wrong['seed']}, is damaged \({name} is not what a trial writes"
    with pytest.raises(ValueError, match=says):
        all_rows(small / "results")


def test_trials_are_run_seed_by_seed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_rows, "data_obstacle", lambda dataset, path: None)
    monkeypatch.setattr(reproduce_rows, "obstacle", lambda config, path: None)
    found = load_reproduction("small")
    left = missing(found, [row(found.cells[1].trials[0], 0.7)], {})
    order = [(trial.seed, trial.config.pairs) for trial in left.trials if trial.dataset == "colored_mnist"]
    assert order == [(0, 40), (1, 40), (1, 124)]


def test_a_cell_may_be_the_mean_over_data_sets(small: Path) -> None:
    """Of the seeds that have a row of each."""
    found = load_reproduction("small")
    cell = found.cells[0]
    other = tuple(replace(trial, dataset="colored_mnist_clean") for trial in cell.trials)
    both = replace(cell, trials=(*cell.trials, *other))
    rows = (row(cell.trials[0], 0.6), row(cell.trials[1], 0.7), row(other[1], 0.8, collapse="the loss is NaN"))
    measured = Measured(both, rows)
    assert measured.values("average") == pytest.approx([0.75])
    assert measured.collapsed == 1
    line = cells(table_of(found, [measured]).markdown(), "40 pairs")
    assert (line[0], line[11:13]) == ("ColoredMNIST", ["1 of 2", "1"])
