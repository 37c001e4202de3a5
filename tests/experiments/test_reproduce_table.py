"""Tables say what the rows say, beside the paper's figures, and so does the verdict."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments.reproduction_rows import cells, row

from ipg.evaluation.spread import bootstrap
from ipg.experiments.reproduce.page import verdict
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured, measure
from ipg.experiments.reproduce.table import quick_note, table_of


@pytest.fixture
def small(small_reproduction: Path) -> Path:
    return small_reproduction


def test_the_last_epoch_stands_beside_what_a_rule_selects(small: Path) -> None:
    found = load_reproduction("small")
    cell = found.cells[0]
    by_rule = Measured(cell, (row(cell.trials[0], 0.7, last=0.6),))
    others = tuple(replace(t, config=t.config.with_changes(selection="last")) for t in cell.trials)
    without = Measured(replace(cell, name="others", trials=others), (row(others[0], 0.7, last=0.6),))
    page = table_of(found, [by_rule, without]).markdown()
    assert cells(page, "40 pairs")[4:6] == ["70.0", "60.0"]
    assert cells(page, "others")[4:6] == ["70.0", "–"]
    assert "*Last epoch*" in page
    told = "kept: `training_environments`, the paper's on ColoredMNIST: the best in the training environments, where"
    assert told in page
    assert "pays (ColoredMNIST, protocol paper, 40 pairs); `last`, that at the end of training (ColoredMNIST, " in page
    assert "ast epoch" not in table_of(found, [without]).markdown()
    photographs = tuple(replace(t, config=t.config.with_changes(selection="worst_group")) for t in cell.trials)
    shown = Measured(replace(cell, name="photographs", trials=photographs), (row(photographs[0], 0.7, last=0.6),))
    page = table_of(found, [shown, without]).markdown()
    assert cells(page, "photographs")[4:6] == ["70.0", "60.0"]
    assert "`worst_group`, the paper's on photographs: the best in the worst group of the validation images (" in page
    assert "ast epoch" not in table_of(replace(found, metrics=("cost",)), [by_rule]).markdown()


def test_the_precision_is_told_and_what_asks_for_another(small: Path) -> None:
    found = load_reproduction("small")
    first, *others = measure(found, [])
    assert "Rows are in bf16; the paper does not say its precision." in table_of(found, [first, *others]).markdown()
    trials = tuple(replace(t, config=t.config.with_changes(precision="tf32")) for t in first.cell.trials)
    before = Measured(replace(first.cell, trials=trials), ())
    told = "Rows are in bf16, unless listed here (TF32: {}); the paper"
    assert told.format("40 pairs") in table_of(found, [before, *others]).markdown()
    assert told.format("40 pairs on ColoredMNIST") in table_of(found, [before, first, *others]).markdown()
    assert "precision" not in table_of(replace(found, quick=True), [first]).markdown()


def test_the_table_sets_ours_beside_the_papers(small: Path) -> None:
    found = load_reproduction("small")
    first, second = found.cells[0], found.cells[1]
    rows = [row(first.trials[0], 0.66, last=0.6), row(first.trials[1], 0.70, last=0.6), row(second.trials[0], 0.712)]
    table = table_of(found, measure(found, rows))
    page = table.markdown()
    # 66 and 70 %: mean 68, deviation sqrt(8) = 2.8; the paper has 67.6 ± 1.5
    accuracy, worst = ["68.0 ± 2.8", "60.0 ± 0.0", "67.6 ± 1.5", "+0.4"], ["58.0 ± 2.8", "50.0 ± 0.0"]
    assert cells(page, "40 pairs")[2:10] == ["recolored", "paper", *accuracy, *worst]
    assert cells(page, "40 pairs")[10:15] == ["0.1 %", "2", "0", "a machine", "`0123456`"]
    assert cells(page, "124 pairs")[4:12] == ["71.2", "–", "71.2 ± 0.6", "+0.0", "61.2", "–", "0.3 %", "1 of 2"]
    assert cells(page, "IPG, 388 pairs")[-1] == "not run: needs patience"
    assert cells(page, "IPG, ResNet-50")[-1].startswith("not run: needs ImageNet weights of ResNet-50")
    assert "torch 9.9" in page
    records = {(r["setting"], r["metric"]): r for r in csv.DictReader(io.StringIO(table.csv()))}
    ours = records["40 pairs", "average"]
    assert float(ours["mean"]) == pytest.approx(68)
    assert float(ours["difference"]) == pytest.approx(0.4)
    assert (ours["paper trials"], ours["version"]) == ("10", "whole")
    assert float(ours["last epoch mean"]) == pytest.approx(60)
    assert records["IPG, 388 pairs", "average"]["mean"] == ""
    interval = bootstrap([0.66, 0.70])
    assert float(ours["interval low"]) == pytest.approx(100 * interval.low)
    assert float(ours["interval high"]) == pytest.approx(100 * interval.high)
    assert ours["selection"] == "training_environments"
    assert records["124 pairs", "average"]["interval low"] == ""  # of one seed there is none
    assert records["IPG, ResNet-50", "average"]["selection"] == "worst_group"
    assert records["IPG, 388 pairs", "average"]["selection"] == ""  # is not run
    told = ("seeds", "seeds asked", "collapsed", "hardware", "commit")
    assert [records["124 pairs", "average"][name] for name in told] == ["1", "2", "0", "a machine", "0123456"]
    assert [records["IPG, ResNet-50", "average"][name] for name in told] == ["0", "2", "", "", ""]
    assert table.records[0]["collapsed"] == 0  # a number, for programs
    assert "training_environments" in page
    assert "pays (ColoredMNIST); `worst_group`" in page


def test_a_protocol_may_have_a_rule_of_its_own(small: Path) -> None:
    found = load_reproduction("small")
    cell = found.cells[0]
    last = tuple(replace(trial, config=trial.config.with_changes(selection="last")) for trial in cell.trials)
    ours = replace(cell, protocol="ours", trials=last)
    page = table_of(found, [Measured(cell, ()), Measured(ours, ())]).markdown()
    assert (
        "pays (ColoredMNIST, protocol paper); `last`, that at the end of training (ColoredMNIST, protocol ours)."
        in page
    )
    alone = table_of(found, [Measured(ours, ())]).markdown()
    assert "kept: `last`, that at the end of training.\n" in alone


def test_the_least_of_a_curve_is_of_no_kept_epoch(small: Path) -> None:
    found = replace(load_reproduction("small"), metrics=("task_loss",))
    table = table_of(found, measure(found, []))
    assert table.records[0]["selection"] == "least of all epochs"
    assert "*Selection rule*: none, it is the least of all epochs." in table.markdown()


def test_seeds_that_broke_off_count_as_collapsed(small: Path) -> None:
    """One with what its network is worth, and one with nothing to measure, which leaves a dash."""
    found = load_reproduction("small")
    one, two = found.cells[0].trials
    collapsed = row(one, 0.66, collapse="the model has collapsed")
    page = table_of(found, measure(found, [collapsed, row(two, 0.70)])).markdown()
    assert cells(page, "40 pairs")[4] == "68.0 ± 2.8"
    assert cells(page, "40 pairs")[11:13] == ["2", "1"]
    assert "*Collapsed*: seeds that predict one class for every image, or whose training broke off." in page
    empty = {"average": None, "worst_group": None, "group_mean": None, "groups": {}}
    broken = row(two, 0.0, collapse="the loss is NaN", metrics=empty)
    page = table_of(found, measure(found, [collapsed, broken])).markdown()
    assert cells(page, "40 pairs")[4:9] == ["–", "–", "67.6 ± 1.5", "–", "–"]
    assert cells(page, "40 pairs")[11:13] == ["2", "2"]


def test_a_whole_reproduction_has_no_note_of_a_small_one(small: Path) -> None:
    assert quick_note(load_reproduction("small")) == ""


def test_the_verdict_counts_what_the_spreads_allow(small: Path) -> None:
    found = load_reproduction("small")
    first, second = found.cells[0], found.cells[1]
    # 40 pairs: 68 ± 2.8 (n 2) against 67.6 ± 1.5 (n 10): within; 124 pairs: 80 ± 0.1 against 71.2 ± 0.6: above
    rows = [row(first.trials[0], 0.66), row(first.trials[1], 0.70)]
    rows += [row(second.trials[0], 0.799), row(second.trials[1], 0.801)]
    told = verdict(measure(found, rows))
    whose = "2 of them by its own settings and network"
    assert told == f"figures of the paper measured: 2 of 3, {whose} (1 within two standard errors, 1 ours above)."
    assert verdict(measure(found, [])) == "figures of the paper measured: 0 of 3."


def test_a_figure_counts_once_and_the_papers_settings_decide(small: Path) -> None:
    found = load_reproduction("small")
    (ours, *_) = measure(found, [row(trial, 0.5) for trial in found.cells[0].trials])
    (papers, *_) = measure(
        found, [row(trial, share) for trial, share in zip(found.cells[0].trials, (0.66, 0.70), strict=True)]
    )
    other = replace(ours, cell=replace(ours.cell, protocol="tuned"))
    assert verdict([other, papers]).endswith(
        "1 of 1, 1 of them by its own settings and network (1 within two standard errors)."
    )
    assert verdict([other]).endswith("1 of 1, 0 of them by its own settings and network (1 ours below).")
    figures = {name: replace(figure, count=None) for name, figure in ours.cell.figures.items()}
    untold = replace(ours, cell=replace(ours.cell, figures=figures))
    assert "(not judged, for want of a spread or a number of trials: 1 ours below)." in verdict([untold])


@pytest.mark.parametrize("other", [{"model": "small_cnn"}, {"data": "celeba_subset"}])
def test_another_network_or_a_subset_is_not_what_the_paper_ran(small: Path, other: dict[str, Any]) -> None:
    cell = load_reproduction("small").cells[0]
    assert cell.by_the_paper
    trials = tuple(
        replace(trial, dataset=other.get("data", trial.dataset), config=trial.config.with_changes(**other))
        for trial in cell.trials
    )
    cell = replace(cell, trials=trials)
    told = verdict([Measured(cell, tuple(row(trial, 0.7) for trial in trials))])
    assert "1 of 1, 0 of them by its own settings and network" in told
