"""Reproductions as data: every file can be read, and its cells are what it says."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from pathlib import Path

import pytest

from ipg.config import ConfigError
from ipg.experiments.arms import published, run_of
from ipg.experiments.reproduce.plan import Cell, Reproduction, load_reproduction, names, read_reproduction
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.reproduce.table import table_of
from ipg.experiments.study import find_study

SMALL = """
title = "Small"
paper = "tab:pair-sensitivity"
claim = "…"
figure = "boxes"
axes = ["pairs"]
[[arm]]
name = "{pairs} pairs"
paper = "IPG, {pairs} pairs"
datasets = ["colored_mnist", "waterbirds100"]
protocol = "paper"
method = "ipg"
vary = { pairs = [40, 124] }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "01-small.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
@pytest.mark.parametrize("name", names())
def test_all_can_be_read_and_the_small_version_needs_no_file(name: str, quick: bool) -> None:
    found = load_reproduction(name, quick=quick)
    assert found.title
    if quick:
        for trial in found.trials:
            assert trial.dataset.startswith("colored_fashion")
            assert trial.config.weights is None
            assert isinstance(trial.config.pairs, int)
        if load_reproduction(name).trials:
            assert found.trials, "there is nothing to try on embedded images"


@pytest.mark.parametrize("name", names())
def test_no_two_lines_of_the_small_version_show_one_run_unless_the_whole_does(name: str) -> None:
    def alike(found: Reproduction) -> set[tuple[Hashable, Hashable]]:
        runs = {(cell.dataset, cell.name, cell.protocol): run_of(cell.trials[0]) for cell in found.cells if cell.trials}
        return {pair for pair in itertools.combinations(runs, 2) if runs[pair[0]] == runs[pair[1]]}

    assert alike(load_reproduction(name, quick=True)) <= alike(load_reproduction(name))


def test_lines_of_the_small_version_have_the_settings_that_they_are_named_for() -> None:
    few = {cell.name: cell.trials[0].config for cell in load_reproduction("few_pairs", quick=True).cells}
    kept = [few[f"124 real pairs, kept by {rule}"].selection for rule in ("the worst group", "held-out pairs")]
    assert kept == ["worst_group", "pairs"]
    assert few["124 real pairs, crops of 40 % and more"].crop == 0.4
    sparse = load_reproduction("sparse", quick=True)
    (every,) = [cell for cell in sparse.cells if cell.name == "every 1, all 124 pairs"]
    assert every.trials[0].config.pair_batch == every.trials[0].config.pairs == 124


def test_every_cell_of_the_paper_is_reproduced_or_quoted() -> None:
    """No figure of the paper is left out of the tables."""
    shown = {figure for name in names() for cell in load_reproduction(name).cells for figure in cell.figures.values()}
    assert set(published()) - shown == set()


def test_fishrs_figure_stands_beside_the_mean_over_its_test_environments() -> None:
    cells = [cell for cell in load_reproduction("accuracy_colored_mnist").cells if "Fishr" in cell.name]
    (shown,) = [cell for cell in cells if cell.figures]
    assert shown.figures["average"].mean == 68.8
    assert {trial.dataset for trial in shown.trials} == {f"colored_mnist_test{n}" for n in range(3)}
    assert len(shown.trials) == 30


def cells_of(name: str, dataset: str) -> dict[str, Cell]:
    return {cell.name: cell for cell in load_reproduction(name).cells if cell.dataset == dataset}


def test_all_of_celeba_is_an_arm_that_says_what_it_needs() -> None:
    found = cells_of("accuracy_celeba", "celeba")["IPG, ResNet-50, edited pairs"]
    assert found.by_the_paper
    assert {(trial.config.model, trial.config.pairs) for trial in found.trials} == {("resnet50", "pairs-edited-1208")}
    assert found.figures["worst_group"].mean == 74.7
    page = table_of(load_reproduction("accuracy_celeba"), [Measured(found, ())]).markdown()
    assert "not run: needs all of CelebA, ImageNet weights of ResNet-50 and pairs edited by FLUX.1 Kontext" in page


@pytest.mark.parametrize(
    ("name", "dataset", "cells"),
    [
        ("accuracy_celeba", "celeba_subset", {"LfF": 70.6, "JTT": 81.1, "GroupDRO": 88.9}),
        ("accuracy_celeba", "celeba_subset", {"EvA-E (re-derived)": 82.7, "DKT (re-derived)": 92.3}),
        ("accuracy_waterbirds100", "waterbirds100", {"EPG IxG": 56.1, "GALS with masks": None}),
        ("accuracy_waterbirds100", "waterbirds100_reverse", {"IPG": 86.7, "EPG IxG": 56.5, "GALS with masks": None}),
        ("accuracy_colored_mnist", "colored_mnist", {"meta-IRM": 70.4, "DAIR, random copies": 73.1}),
        (
            "accuracy_colored_mnist",
            "colored_mnist",
            {"shape-only": None, "NCM on pixels": None, "DAIR, opposite colour": None, "Fishr": None},
        ),
    ],
)
def test_rivals_have_the_rows_of_the_unified_protocol(name: str, dataset: str, cells: dict[str, float | None]) -> None:
    """They say whose protocol they are of; what is not the paper's method has no figure of the paper's beside it."""
    found = cells_of(name, dataset)
    study = find_study(f"{dataset}_unified")
    for title, mean in cells.items():
        cell = found[f"{title}, unified"]
        assert cell.protocol == "unified"
        assert {trial.key for trial in cell.trials} < {trial.key for trial in study.trials}
        first = next(iter(load_reproduction(name).metrics))
        assert (cell.figures[first].mean if cell.figures else None) == mean


def test_what_counts_on_the_reverse_task_lies_outside_of_the_masks() -> None:
    cells = cells_of("accuracy_waterbirds100", "waterbirds100_reverse")
    for name in ("EPG IxG, unified", "GALS with masks, unified"):
        trials = cells[name].trials
        assert {(trial.config.options["outside"], trial.config.model) for trial in trials} == {
            (True, "mobilenetv2_100")
        }
        there = cells_of("accuracy_waterbirds100", "waterbirds100")[name].trials
        assert not any(trial.config.options.get("outside") for trial in there)
    assert cells["EPG IxG, unified"].figures["worst_group"].mean == 56.5


def test_the_cost_of_ncm_and_eva_e_is_measured() -> None:
    cells = cells_of("runtime", "colored_mnist")
    assert cells["EvA-E (re-derived)"].figures["cost"].mean == 1.0
    (first, *_) = cells["NCM on pixels, a linear network"].trials
    assert (first.method, first.config.model) == ("ncm", "linear")
    assert not cells["NCM on pixels, a linear network"].figures


def test_our_settings_on_celeba_with_fewer_pairs() -> None:
    cells = cells_of("pairs", "celeba_subset")
    ours = {name: cell.trials[0].config.pairs for name, cell in cells.items() if cell.protocol == "ours"}
    assert ours == {
        "40 pairs, our settings": "pairs-40",
        "124 pairs, our settings": "pairs-124",
        "388 pairs, our settings": "pairs-388",
        "890 pairs, our settings": "pairs-matched",
    }
    tuned = find_study("celeba_subset_tuned").trials
    assert {run_of(trial) for trial in cells["890 pairs, our settings"].trials} & {run_of(trial) for trial in tuned}


def test_one_run_is_one_trial_whatever_it_is_called() -> None:
    """Continuous correction at tau 0 is IPG."""
    found = load_reproduction("ablation")
    methods = {(trial.dataset, trial.method) for trial in found.trials}
    assert ("colored_mnist", "ipg") in methods or ("colored_mnist", "continuous") in methods
    assert not {("colored_mnist", "ipg"), ("colored_mnist", "continuous")} <= methods
    assert {("waterbirds100_reverse", "ipg"), ("waterbirds100_reverse", "continuous")} <= methods  # tau 0.5


def test_a_threshold_that_is_compared_can_be_met() -> None:
    cells = [cell for cell in load_reproduction("ablation_beyond").cells if cell.name.startswith("violated when")]
    shares = [(config.tau * config.pair_batch) % 1 for cell in cells for config in [cell.trials[0].config]]
    assert len(cells) == 3
    assert shares == [0, 0, 0]


@pytest.mark.parametrize("name", ["runtime", "sparse"])
def test_what_is_timed_stands_alone_and_evaluates_as_often_as_erm(name: str) -> None:
    found = load_reproduction(name)
    assert found.alone
    for dataset in {trial.dataset for trial in found.trials}:
        assert len({trial.config.selection for trial in found.trials if trial.dataset == dataset}) == 1


def test_what_varies_makes_cells_on_every_data_set(tmp_path: Path) -> None:
    found = read_reproduction(write(tmp_path, SMALL), "small")
    assert [(cell.dataset, cell.name) for cell in found.cells] == [
        ("colored_mnist", "40 pairs"),
        ("colored_mnist", "124 pairs"),
        ("waterbirds100", "40 pairs"),
        ("waterbirds100", "124 pairs"),
    ]
    first, *_, last = found.cells
    assert (first.figures["average"].mean, last.figures["worst_group"].mean) == (67.6, 86.3)
    assert [trial.seed for trial in first.trials] == list(range(10))
    assert (first.trials[0].config.pairs, last.trials[0].config.pairs) == (40, "pairs-124")
    assert (first.trials[0].config.alpha, last.trials[0].config.alpha) == (0.5, 0.1)  # the paper's, by data set


def test_the_small_version_keeps_what_varies_and_drops_the_rest(tmp_path: Path) -> None:
    text = SMALL.replace("pairs = [40, 124]", "pair_batch = [64]").replace("pairs}", "pair_batch}")
    found = read_reproduction(write(tmp_path, text), "small", quick=True)
    trial = found.cells[0].trials[0]
    assert (trial.dataset, trial.config.pair_batch, trial.config.epochs) == ("colored_fashion_noisy", 64, 2)
    few = read_reproduction(write(tmp_path, SMALL + "[quick]\nseeds = 1\nvary = { pairs = [40] }\n"), "s", quick=True)
    assert [(cell.name, len(cell.trials)) for cell in few.cells] == [("40 pairs", 1)] * 2


def test_options_may_vary_and_defaults_are_spelled_out(tmp_path: Path) -> None:
    text = SMALL.replace('method = "ipg"', 'method = "joint"').replace(
        "vary = { pairs = [40, 124] }", 'vary = { "options.order" = ["sum"] }'
    )
    found = read_reproduction(write(tmp_path, text.replace("{pairs}", "{order}")), "small")
    assert found.cells[0].trials[0].config.options == {"order": "sum", "loss": "alignment"}
    assert found.cells[0].name == "sum pairs"


def test_the_arm_of_a_study_is_that_studys(tmp_path: Path) -> None:
    arm = '[[arm]]\nname = "IPG"\ndatasets = ["colored_mnist"]\nprotocol = "tuned"\nmethod = "ipg"\n'
    given = 'study = { name = "colored_mnist_tuned", dataset = "colored_mnist", config = { pairs = 40 } }\n'
    found = read_reproduction(write(tmp_path, SMALL + arm + given), "small")
    tuned = [trial for trial in find_study("colored_mnist_tuned").trials if trial.config.pairs == 40]
    assert len(tuned) == 10
    assert [trial.key for trial in found.cells[2].trials] == [trial.key for trial in tuned]
    wrongs = {
        "has no ipg \\(never\\)": SMALL + arm.replace('"tuned"', '"never"') + given,
        "has no ipg .* with {'pairs': 41}": SMALL + arm + given.replace("40", "41"),
        "has several ipg .*; say by config": SMALL + arm + given.replace(", config = { pairs = 40 }", ""),
    }
    for message, wrong in wrongs.items():
        with pytest.raises(ConfigError, match=message):
            read_reproduction(write(tmp_path, wrong), "small")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SMALL.replace("claim", "clam"), "unknown key 'clam'; .*lacks 'claim'"),
        (SMALL.replace("claim =", 'holds = "maybe"\nclaim ='), "holds is 'maybe'; expected yes, in part, no or open"),
        (SMALL.replace("claim =", 'seen = "Much."\nclaim ='), "seen is a text; expected a list of texts"),
        (SMALL.replace("vary =", "varied ="), "arm 1: unknown key 'varied'"),
        (SMALL.replace('["colored_mnist", "waterbirds100"]', '["elsewhere"]'), "no settings 'paper' for 'elsewhere'"),
        (SMALL.replace("pairs = [40, 124]", "alpha = [2.0]").replace("pairs}", "alpha}"), "arm 1: alpha=2.0"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, wrong: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_reproduction(write(tmp_path, wrong), "small")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'pears'; did you mean pairs\? There are accuracy_colored_mnist, "):
        load_reproduction("pears")
    with pytest.raises(ConfigError, match="'42'; there are accuracy_colored_mnist, "):
        load_reproduction("42")
