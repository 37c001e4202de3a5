"""Reproductions are run, their rows found again, and their tables say what the rows say."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipg.config import ConfigError
from ipg.data.errors import DataError
from ipg.experiments.arms import same_run
from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce import queue as reproduce_queue
from ipg.experiments.reproduce import rows as reproduce_rows
from ipg.experiments.reproduce import run as reproduce
from ipg.experiments.reproduce.figures import drawings_of
from ipg.experiments.reproduce.list import listing
from ipg.experiments.reproduce.page import filled, filled_page, stale, verdict
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure, missing
from ipg.experiments.reproduce.run import Place, main
from ipg.experiments.reproduce.runtime import step_table, with_cost
from ipg.experiments.reproduce.table import quick_note, table_of
from ipg.experiments.runner import Tally
from ipg.experiments.study import Network, Study, Trial

SMALL = """
title = "Number of pairs"
paper = "tab:pair-sensitivity"
claim = "More pairs are better."
metrics = ["average", "worst_group"]
figure = "boxes"
axes = ["pairs"]
seeds = 2
[[arm]]
name = "{pairs} pairs"
paper = "IPG, {pairs} pairs"
datasets = ["colored_mnist"]
protocol = "paper"
method = "ipg"
vary = { pairs = [40, 124] }
[[arm]]
name = "IPG, ResNet-50"
datasets = ["waterbirds100"]
protocol = "paper"
network = "resnet50"
method = "ipg"
[[quoted]]
paper = "IPG, 388 pairs"
dataset = "colored_mnist"
needs = "patience"
[quick]
seeds = 1
data = { colored_mnist = "bars" }
config = { epochs = 1, batch = 32, pairs = 8, pair_batch = 4, held_out_pairs = 4 }
vary = { pairs = [40] }
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small reproduction as the only one; an empty folder of results."""
    folder = tmp_path / "reproductions"
    folder.mkdir()
    (folder / "01-small.toml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(reproduce_plan, "FOLDER", folder)
    return tmp_path


def shares(average: float) -> dict[str, Any]:
    return {"average": average, "worst_group": average - 0.1, "group_mean": average, "groups": {}}


def row(trial: Trial, average: float, last: float | None = None, **changes: Any) -> dict[str, Any]:
    """A row of `trial` as the runner writes it."""
    return {
        "key": trial.key,
        "study": trial.study,
        "dataset": trial.dataset,
        "method": trial.method,
        "protocol": trial.protocol,
        "seed": trial.seed,
        "config": {name: value for name, value in trial.config.flat().items() if name not in ("seed", "data_path")},
        "split": "test",
        "metrics": shares(average),
        **({} if last is None else {"last_metrics": shares(last)}),
        "seconds": 10.0,
        "hardware": "a machine",
        "versions": {"python": "3.99", "torch": "9.9"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
        **changes,
    }


def keep(results: Path, study: str, rows: list[dict[str, Any]]) -> None:
    file = results / study / "trials.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def cells(page: str, setting: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if f"| {setting} |" in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


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


def test_rows_of_other_studies_do_not_count_for_what_stands_alone(small: Path) -> None:
    text = SMALL.replace("seeds = 2\n[[arm]]", "seeds = 2\nalone = true\n[[arm]]")
    (small / "reproductions" / "01-small.toml").write_text(text, encoding="utf-8")
    found = load_reproduction("small")
    one, two = found.cells[0].trials
    rows = [row(one, 0.67, study="another", key="k1"), row(two, 0.7)]
    assert measure(found, rows)[0].values("average") == [0.7]
    assert one.key in missing(found, rows, {"": str(small / "nowhere")}).obstacles
    assert measure(replace(found, alone=False), rows)[0].values("average") == [0.67, 0.7]


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


def test_the_last_epoch_stands_beside_what_training_environments_select(small: Path) -> None:
    found = load_reproduction("small")
    cell = found.cells[0]
    by_rule = Measured(cell, (row(cell.trials[0], 0.7, last=0.6),))
    others = tuple(replace(t, config=t.config.with_changes(selection="last")) for t in cell.trials)
    without = Measured(replace(cell, name="others", trials=others), (row(others[0], 0.7, last=0.6),))
    page = table_of(found, [by_rule, without]).markdown()
    assert cells(page, "40 pairs")[4:6] == ["70.0", "60.0"]
    assert cells(page, "others")[4:6] == ["70.0", "–"]
    assert "*Last epoch*" in page
    assert "ast epoch" not in table_of(found, [without]).markdown()
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


def test_the_verdict_counts_what_the_spreads_allow(small: Path) -> None:
    found = load_reproduction("small")
    first, second = found.cells[0], found.cells[1]
    # 40 pairs: 68 ± 2.8 (n 2) against 67.6 ± 1.5 (n 10): within; 124 pairs: 80 ± 0.1 against 71.2 ± 0.6: above
    rows = [row(first.trials[0], 0.66), row(first.trials[1], 0.70)]
    rows += [row(second.trials[0], 0.799), row(second.trials[1], 0.801)]
    told = verdict(measure(found, rows))
    whose = "2 of them by the paper's own settings"
    assert told == f"measured of the paper's figures: 2 of 3, {whose} (1 within two standard errors, 1 ours above)."
    assert verdict(measure(found, [])) == "measured of the paper's figures: 0 of 3."


def test_a_figure_counts_once_and_the_papers_settings_decide(small: Path) -> None:
    found = load_reproduction("small")
    (ours, *_) = measure(found, [row(trial, 0.5) for trial in found.cells[0].trials])
    (papers, *_) = measure(
        found, [row(trial, share) for trial, share in zip(found.cells[0].trials, (0.66, 0.70), strict=True)]
    )
    other = replace(ours, cell=replace(ours.cell, protocol="tuned"))
    assert verdict([other, papers]).endswith(
        "1 of 1, 1 of them by the paper's own settings (1 within two standard errors)."
    )
    assert verdict([other]).endswith("1 of 1, 0 of them by the paper's own settings (1 ours below).")
    figures = {name: replace(figure, count=None) for name, figure in ours.cell.figures.items()}
    untold = replace(ours, cell=replace(ours.cell, figures=figures))
    assert "(with too little told to judge: 1 ours below)." in verdict([untold])


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
    assert "1 of 1, 0 of them by the paper's own settings" in told


def test_a_page_is_filled_and_checked(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = small / "results.md"
    page.write_text("before\n<!-- reproduce:small -->\nold\n<!-- /reproduce:small -->\nafter\n", encoding="utf-8")
    arguments = [str(page), "--results", str(small / "results")]
    assert main(["--check", *arguments]) == 1
    assert "run python -m ipg.experiments.reproduce --write" in capsys.readouterr().err
    assert main(["--write", *arguments]) == 0
    assert main(["--check", *arguments]) == 0
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "$ ipg reproduce small" in text
    keep(small / "results", "small", [row(load_reproduction("small").cells[0].trials[0], 0.66)])
    assert main(["--check", *arguments]) == 1
    page.write_text("<!-- reproduce:small -->\n", encoding="utf-8")
    assert main(["--write", *arguments]) == 2
    assert "<!-- /reproduce:small -->" in capsys.readouterr().err


def test_what_was_seen_of_a_claim_is_told_after_it_and_not_of_small_versions(small: Path) -> None:
    (file,) = (small / "reproductions").glob("*small.toml")
    file.write_text(SMALL.replace("claim =", 'seen = "They were."\nclaim ='), encoding="utf-8")
    page = filled("<!-- reproduce:small -->\n<!-- /reproduce:small -->\n", small / "results").text
    assert page.index("More pairs are better.") < page.index("*What we saw*: They were.") < page.index("How it stands")
    assert load_reproduction("small", quick=True).seen == ""


def test_the_projects_own_page_is_what_its_rows_give(repo_root: Path) -> None:
    page = repo_root / "docs" / "results.md"
    given = filled_page(page, repo_root / "results")
    assert [path.name for path in given if not path.is_file()] == []
    assert [path.name for path, text in given.items() if path.read_text(encoding="utf-8") != text] == []
    assert stale(page, given) == []
    assert all(f"<!-- reproduce:{name} -->" in given[page] for name in reproduce_plan.names())


@pytest.fixture
def page_of_small(small: Path) -> Path:
    """A page with the small reproduction, of which two seeds with 40 pairs on ColoredMNIST have rows."""
    trials = load_reproduction("small").cells[0].trials
    keep(small / "results", "small", [row(trials[0], 0.66), row(trials[1], 0.7)])
    page = small / "page.md"
    page.write_text("<!-- reproduce:small -->\n<!-- /reproduce:small -->\n", encoding="utf-8")
    return page


def on_page(what: str, page: Path) -> int:
    return main([what, str(page), "--results", str(page.parent / "results")])


def test_a_page_has_the_figures_of_data_with_rows_alone(page_of_small: Path) -> None:
    assert on_page("--write", page_of_small) == 0
    folder = page_of_small.with_suffix("")
    assert [path.name for path in folder.iterdir()] == ["small-colored_mnist.svg"]  # none of Waterbirds-100
    text = page_of_small.read_text(encoding="utf-8")
    (shown,) = [line for line in text.splitlines() if line.startswith("![")]
    assert shown == (
        "![Box plots of accuracy on ColoredMNIST: our runs, the paper's settings, median 68.0 % with 40 pairs; "
        "the paper's means beside them as diamonds](page/small-colored_mnist.svg)"
    )
    assert text.index("| 40 pairs |") < text.index(shown) < text.index("$ ipg reproduce small")
    (page_of_small.parent / "results" / "small" / "trials.jsonl").unlink()
    assert filled(text, page_of_small.parent / "results").figures == {}


def test_figures_are_the_same_bytes_each_time(page_of_small: Path) -> None:
    assert on_page("--write", page_of_small) == 0
    figure = page_of_small.with_suffix("") / "small-colored_mnist.svg"
    first = figure.read_bytes()
    figure.unlink()
    assert on_page("--write", page_of_small) == 0
    assert figure.read_bytes() == first


def test_figures_are_checked(page_of_small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert on_page("--write", page_of_small) == 0
    figure = page_of_small.with_suffix("") / "small-colored_mnist.svg"
    assert on_page("--check", page_of_small) == 0
    svg = figure.read_text(encoding="utf-8")
    figure.write_text(svg.replace("68.0", "86.0"), encoding="utf-8")
    assert on_page("--check", page_of_small) == 1
    assert f"{figure} is not what the rows give; run " in capsys.readouterr().err
    figure.unlink()
    assert on_page("--check", page_of_small) == 1
    assert f"{figure} is missing; run " in capsys.readouterr().err
    assert not figure.exists()


def test_figures_that_no_row_gives_are_removed_and_other_files_are_not(
    page_of_small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_page("--write", page_of_small) == 0
    folder = page_of_small.with_suffix("")
    old, others = folder / "gone-waterbirds100.svg", [folder / "sketch.svg", folder / "by-hand.svg"]
    for path in (old, *others):
        path.write_text("<svg/>", encoding="utf-8")
    assert on_page("--check", page_of_small) == 1
    assert str(old) in capsys.readouterr().err
    assert on_page("--write", page_of_small) == 0
    assert not old.exists()
    assert all(path.exists() for path in others)
    assert on_page("--check", page_of_small) == 0


@pytest.mark.parametrize(
    ("counts", "told"), [({1}, "one seed"), ({2}, "of 2 seeds"), ({1, 3}, "standard deviation of 1 to 3 seeds")]
)
def test_a_grid_tells_its_seeds_and_its_line(counts: set[int], told: str) -> None:
    whole = load_reproduction("every_alpha")
    rows = [
        row(trial, 0.2 if trial.config.alpha * trial.config.every >= 1 else 0.7)
        for cell, count in zip(whole.cells, itertools.cycle(sorted(counts)), strict=False)
        for trial in cell.trials[:count]
        if cell.dataset == "colored_mnist"
    ]
    drawings = drawings_of(whole, measure(whole, rows))
    assert list(drawings) == ["every_alpha-colored_mnist"]
    (drawing,) = drawings.values()
    assert told in drawing.svg
    assert "k α = 1: up and left of it" in drawing.svg
    assert drawing.alt.startswith(
        "Grid of accuracy on ColoredMNIST by α and k, 20 of 20 cells measured, from 20.0 % at"
    )
    assert drawing.alt.endswith("; a line at k α = 1")


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
    assert html.count("<figure><svg") == 1
    assert ">bars</th><td>40 pairs</td>" in html
    assert "**" not in html
    assert not (small / "results").exists()
    rows = (written.folder / "rows" / "small" / "trials.jsonl").read_text(encoding="utf-8")
    assert reproduce.reproduce("small", place, quick=True).failed == 0
    assert (written.folder / "rows" / "small" / "trials.jsonl").read_text(encoding="utf-8") == rows  # nothing twice


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


def test_cost_is_time_over_erm_on_the_same_machine(small: Path) -> None:
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    runtime = reproduce_plan.read_reproduction(file, "runtime")
    plain, guided = runtime.cells[0].trials, next(c for c in runtime.cells if c.name == "IPG, pair batch 128").trials
    rows = [row(plain[0], 0.1, seconds=8.0), row(plain[1], 0.1, seconds=12.0), row(guided[0], 0.7, seconds=30.0)]
    rows.append(row(guided[1], 0.7, seconds=30.0, hardware="another machine"))
    priced = {entry.cell.name: entry for entry in with_cost(measure(runtime, rows))}
    assert priced["ERM"].values("cost") == [0.8, 1.2]
    assert priced["IPG, pair batch 128"].rows[0]["metrics"]["cost"] == 3.0
    assert priced["IPG, pair batch 128"].rows[1]["metrics"]["cost"] is None  # no ERM there
    assert priced["IPG, pair batch 128"].values("cost") == [3.0]
    assert step_table(small) is None


@pytest.mark.parametrize("apart", [{"config": {"engine": "compiled"}}, {"curve": [None, 0.5]}])
def test_cost_is_that_over_erm_run_alike(small: Path, apart: dict[str, Any]) -> None:
    """An engine of its own, or the split evaluated at the end alone, takes less time whatever the method."""
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    plain = reproduce_plan.read_reproduction(file, "runtime").cells[0]
    rows = [row(trial, 0.1, seconds=seconds) for trial, seconds in zip(plain.trials[:2], (8.0, 4.0), strict=True)]
    rows[0]["curve"] = [0.4, 0.5]
    rows[1] |= apart
    (priced,) = with_cost([Measured(plain, tuple(rows))])
    assert priced.values("cost") == [1.0, 1.0]  # each beside itself


def test_trials_that_began_a_process_have_no_cost(small: Path) -> None:
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    plain = reproduce_plan.read_reproduction(file, "runtime").cells[0]
    rows = [
        row(trial, 0.1, seconds=seconds) for trial, seconds in zip(plain.trials[:3], (60.0, 11.0, 13.0), strict=True)
    ]
    for line, preparing in zip(rows, (40.0, 1.0, 1.0), strict=True):
        line["preparing_seconds"] = preparing
    (priced,) = with_cost([Measured(plain, tuple(rows))])
    assert priced.values("cost") == [10 / 11, 12 / 11]  # the median of 10 and 12 is 11


def test_trials_that_shared_a_gpu_have_no_cost(small: Path) -> None:
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    plain = reproduce_plan.read_reproduction(file, "runtime").cells[0]
    rows = [
        row(trial, 0.1, seconds=seconds) for trial, seconds in zip(plain.trials[:3], (60.0, 10.0, 12.0), strict=True)
    ]
    rows[0]["sharing"] = 4
    (priced,) = with_cost([Measured(plain, tuple(rows))])
    assert priced.values("cost") == [10 / 11, 12 / 11]


def test_every_auto_is_a_pace_of_its_own(small: Path) -> None:
    """Rows with a fixed k do not count for it, as they do for what `auto` comes to elsewhere."""
    trial = load_reproduction("small").cells[0].trials[0]
    fixed = row(trial, 0.5)
    open_ = replace(trial, config=trial.config.with_changes(precision="auto"))
    following = replace(trial, config=trial.config.with_changes(every="auto"))
    assert same_run(fixed, open_)
    assert not same_run(fixed, following)
    assert same_run(row(following, 0.5), following)


def test_a_whole_reproduction_has_no_note_of_a_small_one(small: Path) -> None:
    assert quick_note(load_reproduction("small")) == ""


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "few_images")
@pytest.mark.parametrize("name", ["ablation_beyond", "corrupted_pairs", "accuracy_celeba", "runtime", "sparse"])
def test_small_versions_of_the_project_run(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "results", tmp_path / "out", device="cpu", workers=1, console=Console(quiet=True))
    written = reproduce.reproduce(name, place, quick=True)
    assert written.failed == 0
    page = (written.folder / "table.md").read_text(encoding="utf-8")
    assert "0 of 1" not in page


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
