"""The short table of a data set: every figure was worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments.table_rows import TUNED, cells, row, short_table, write

from ipg.experiments.arms import arms_of, figure_of, published, spread
from ipg.experiments.study import load_study


def test_spread_divides_by_one_less_than_the_number() -> None:
    found = spread([1.0, 3.0, 8.0])  # mean 4; squares 9, 1, 16 make 26, over 2 is 13
    assert (found.mean, found.count) == (4.0, 3)
    assert found.deviation == pytest.approx(13**0.5)
    assert spread([5.0]).deviation is None


def test_means_and_deviations_of_the_short_table(project: Path) -> None:
    text = short_table(project)
    assert cells(text, "ERM") == ["ERM", "20.0 ± 10.0", "3", "20.0 ± 10.0", "0.0", "2.0", "16.1 ± 0.8"]
    name = "IPG, paper's settings: 124 pairs, α 0.5, every 2"
    assert cells(text, name) == [name, "71.0 ± 1.4", "2 of 3", "51.0 ± 1.4", "62.0", "4.5", "71.2 ± 0.6"]
    assert cells(text, "Random")[-1] == "50.0 ± 0.0"
    assert cells(text, "Optimal")[-1] == "75.0 ± 0.0"
    assert "a machine; torch 9.9, Python 3.99; commit `0123456`" in " ".join(text.split())
    assert "All guided rows: batch 128, learning rate 0.003. Paper's settings: 2 epochs, " in " ".join(text.split())
    assert "pair batch 64, margin 0.08, selection `training_environments`" in " ".join(text.split())


def test_the_short_table_leaves_out_other_readings_and_the_choice_of_settings(project: Path) -> None:
    text = short_table(project)
    assert "Joint" not in text
    assert "60.0" not in text  # an accuracy on the split `search`


def test_a_single_seed_has_no_deviation(project: Path) -> None:
    assert cells(short_table(project), "IPG, our settings: 40 pairs, α 0.2, every 4")[1:3] == ["71.5", "1"]


def test_a_number_of_pairs_that_the_paper_has_not_gets_no_figure(project: Path) -> None:
    file = project / "studies" / "tuned.toml"
    file.write_text(TUNED.replace("pairs = 40", "pairs = 41"), encoding="utf-8")
    (arm,), _ = arms_of(load_study(file), [])
    assert figure_of(arm, published()) is None


ALIKE = """
dataset = "colored_mnist"
seeds = 1
[base]
pairs = 40
alpha = 0.2
[[arm]]
method = "ipg"
protocol = "tuned"
[[arm]]
method = "ipg"
protocol = "tuned"
config = { margin = "2x", epochs = 9 }
"""


def test_arms_of_one_protocol_that_would_read_alike_say_in_what_they_differ(project: Path) -> None:
    file = project / "studies" / "tuned.toml"
    file.write_text(ALIKE, encoding="utf-8")
    rows = [row(trial, average) for trial, average in zip(load_study(file).trials, (0.6, 0.7), strict=True)]
    write(project / "results" / "tuned" / "trials.jsonl", rows)
    text = short_table(project)
    name = "IPG, our settings: 40 pairs, α 0.2, every 4"
    assert cells(text, f"{name}, 6 epochs, margin `0.5x`")[1] == "60.0"
    assert cells(text, f"{name}, 9 epochs, margin `2x`")[1] == "70.0"
    assert text.count("our settings: ") == 2
