"""The page of all results: missing seeds, the choice of settings, speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.table_rows import TUNING, cells, row, write

from ipg.experiments.arms import published
from ipg.experiments.study import load_study
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rows import measured
from ipg.experiments.tables.text import NONE

ORIGIN = ("hardware", "versions", "commit", "date")


def test_missing_seeds_are_named_in_the_long_table(project: Path) -> None:
    page = results_page(measured(project / "results", project / "studies"), published(), [])
    joint = cells(page, "Joint Optimization, order `sum`, loss `alignment`")
    assert "0 of 1" in joint
    assert joint.count(NONE) == 7
    assert "10.2 ± 0.4 (`tab:app_ablation`)" in joint
    assert "2 of 3" in cells(page, "IPG | 124 | 0.5")


def test_the_choice_of_settings_is_ranked_and_marked(project: Path) -> None:
    page = results_page(measured(project / "results", project / "studies"), published(), [])
    assert cells(page, "0.2") == ["0.2", "1", "70.0", "25.0", "2.0", "highest, taken"]
    assert cells(page, "0.1")[-1] == ""
    assert page.index("| 0.2 | 1 |") < page.index("| 0.1 | 1 |")


def test_what_decides_a_choice_ranks_it_and_missing_seeds_win_nothing(project: Path) -> None:
    """0.9 with half of the pairs in agreement is worth 0.45, 0.7 with all of them 0.7; a single arm has no rival."""
    file = project / "studies" / "chosen.toml"
    rivals = TUNING.replace('metrics_split = "search"', 'metrics_split = "search"\ndecides = "pairs"')
    alone = '[[arm]]\nmethod = "ipg"\nprotocol = "alone"\nconfig = { alpha = 0.3 }\n'
    file.write_text(rivals.replace("seeds = [100]", "seeds = [100, 101]") + alone, encoding="utf-8")
    trials = load_study(file).trials
    rows = [row(trial, 0.5) | {"split": "search"} for trial in trials]
    for line, (balanced, disagreement) in zip(rows, [(0.9, 0.5), (0.9, 0.5), (0.7, 0.0), (0.7, 0.0)] * 2, strict=False):
        line["metrics"] |= {"balanced": balanced, "pair_disagreement": disagreement}
    write(project / "results" / "chosen" / "trials.jsonl", rows)

    def marks() -> dict[str, list[str]]:
        _, _, text = results_page(measured(project / "results", project / "studies"), published(), []).partition(
            "## chosen"
        )
        table = text.partition("## first")[0]
        return {cells(table, value)[0]: cells(table, value) for value in ("0.1", "0.2", "0.3")}

    assert [marks()["0.1"][2], marks()["0.1"][-1]] == ["45.0 ± 0.0", ""]
    assert [marks()["0.2"][2], marks()["0.2"][-1]] == ["70.0 ± 0.0", "highest, taken"]
    assert marks()["0.3"][-1] == ""
    write(project / "results" / "chosen" / "trials.jsonl", [line for line in rows if line is not rows[3]])
    assert [marks()["0.1"][-1], marks()["0.2"][-1]] == ["highest", "taken"]  # the better one lacks a seed


def test_each_contender_of_a_method_has_its_own_highest(project: Path) -> None:
    """DAIR competes with either kind of copies under one protocol, each with two weights."""
    arms = [
        f'[[arm]]\nmethod = "dair"\nprotocol = "tuning"\n'
        f'config = {{ options = {{ augment = "{augment}", weight = {weight} }} }}\n'
        for augment in ("random", "swap")
        for weight in (1.0, 2.0)
    ]
    head = 'dataset = "colored_mnist"\nmetrics_split = "search"\nseeds = [100]\n'
    file = project / "studies" / "colored_mnist_unified_tuning.toml"
    plain = '[[arm]]\nmethod = "erm"\nprotocol = "tuning"\n'
    file.write_text(head + "".join([*arms, plain]), encoding="utf-8")
    worths = (0.5, 0.6, 0.72, 0.71, 0.1)
    rows = [row(trial, worth) for trial, worth in zip(load_study(file).trials, worths, strict=True)]
    write(project / "results" / file.stem / "trials.jsonl", rows)
    page = results_page(measured(project / "results", project / "studies"), published(), [])
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| DAIR")]
    assert [(line[0].strip(), line[-1].strip()) for line in lines] == [
        ("DAIR, augment `random`, weight `2.0`", "highest"),
        ("DAIR, augment `random`, weight `1.0`", ""),
        ("DAIR, augment `swap`, weight `1.0`", "highest"),
        ("DAIR, augment `swap`, weight `2.0`", ""),
    ]
    assert "of the contender, of which a method may have several, with as many pairs" in " ".join(page.split())


def test_a_choice_of_a_methods_own_options_names_them(project: Path) -> None:
    """One method, whose settings differ in nothing else."""
    arm = '[[arm]]\nmethod = "dair"\nprotocol = "tuning"\nconfig = {{ options = {{ weight = {} }} }}\n'
    head = 'dataset = "colored_mnist"\nmetrics_split = "search"\nseeds = [100]\n'
    file = project / "studies" / "weights_tuning.toml"
    file.write_text(head + "".join(map(arm.format, (1, 10))), encoding="utf-8")
    rows = [row(trial, worth) for trial, worth in zip(load_study(file).trials, (0.6, 0.7), strict=True)]
    write(project / "results" / file.stem / "trials.jsonl", [line | {"split": "search"} for line in rows])
    page = results_page(measured(project / "results", project / "studies"), published(), [])
    assert [cells(page, f"DAIR, weight `{weight}`")[::5] for weight in (10, 1)] == [
        ["DAIR, weight `10`", "highest"],
        ["DAIR, weight `1`", ""],
    ]
    assert page.index("weight `10`") < page.index("weight `1`")


def test_speed_rows_become_a_table_of_the_last_measurements(project: Path) -> None:
    def measurement(value: float, ratio: float | None) -> dict[str, Any]:
        return {
            "benchmark": "steps",
            "case": "small_cnn ipg b32",
            "value": value,
            "low": value - 1,
            "high": value + 1,
            "unit": "ms",
            "baseline": "small_cnn erm",
            "ratio": ratio,
            "ideal": 1.5,
            **{name: row(load_study(project / "studies" / "tuned.toml").trials[0], 0)[name] for name in ORIGIN},
        }

    page = results_page([], published(), [measurement(90, 9), measurement(30.04, 1.6)])
    assert cells(page, "steps") == [
        *("steps", "small_cnn ipg b32", "30 ms", "29 to 31"),
        *("small_cnn erm", "1.6", "1.5"),
    ]
