"""Tables of photographs: the worst group, a moved line, repairs, and the paper's other network and data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from experiments.table_rows import arguments, cells, row, write

from ipg.experiments.arms import published
from ipg.experiments.store import read_rows
from ipg.experiments.study import load_study
from ipg.experiments.table import main
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rows import measured
from ipg.experiments.tables.short import dataset_table
from ipg.experiments.tables.study import study_table

BIRDS = """
dataset = "waterbirds100"
seeds = 2
[base]
model = "mobilenetv2_100"
weights = "net.safetensors"
pairs = "made"
selection = "worst_group"
[[arm]]
method = "ipg"
protocol = "tuned"
[[arm]]
method = "erm"
protocol = "tuned"
config = { class_weighted = false }
[[arm]]
method = "erm"
protocol = "tuned"
[[arm]]
method = "joint"
protocol = "tuned"
[[arm]]
seeds = [0]
method = "ipg"
protocol = "decision"
config = { decision = "worst_group" }
[[arm]]
seeds = [0]
method = "erm"
protocol = "decision"
config = { decision = "worst_group" }
"""


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """A study of photographs, with rows of some of its trials as the runner writes them where pairs are a file."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "birds.toml").write_text(BIRDS, encoding="utf-8")
    trials = load_study(tmp_path / "studies" / "birds.toml").trials
    worst = (0.80, 0.84, 0.30, 0.40, 0.2, None, None, None, 0.9, 0.5)
    rows = [row(trial, 0.9, worst=value) for trial, value in zip(trials, worst, strict=True) if value is not None]
    for line in rows:
        found = (124, "counterparts") if line["method"] == "ipg" else (0, None)
        line["config"] |= {"pair_file": "made", **dict(zip(("pairs", "pair_builder"), found, strict=True))}
    write(tmp_path / "results" / "birds" / "trials.jsonl", rows)
    return tmp_path


def test_photographs_are_judged_by_their_worst_group_beside_the_papers_other_network(birds: Path) -> None:
    text = dataset_table("waterbirds100", measured(birds / "results", birds / "studies"), published())
    name = "IPG, our settings: 124 real pairs, α 0.1, every 4"
    assert cells(text, "ERM") == ["ERM", "35.0 ± 7.1", "14 to 65", "2", "90.0 ± 0.0", "35.0 ± 7.1", "2.0", "37.9 ± 1.7"]
    assert cells(text, "ERM, class-weighted") == [
        "ERM, class-weighted",
        "20.0",
        "6 to 51",
        "1 of 2",
        "90.0",
        "20.0",
        "2.0",
        "–",
    ]
    assert cells(text, name) == [name, "82.0 ± 2.8", "51 to 95", "2", "90.0 ± 0.0", "82.0 ± 2.8", "2.0", "86.3 ± 1.9"]
    assert text.index("| ERM |") < text.index(f"| {name} |")
    assert "Joint" not in text  # has no row
    assert "`mobilenetv2_100`, where the paper has ResNet-50" in " ".join(text.split())


def test_plain_training_by_two_protocols_says_by_whose_settings(birds: Path) -> None:
    text = BIRDS.replace('"tuned"', '"paper"').replace('"decision"', '"other"').replace("epochs = 6", "epochs = 10")
    (birds / "studies" / "papers.toml").write_text(text, encoding="utf-8")
    trials = load_study(birds / "studies" / "papers.toml").trials
    plain = next(trial for trial in trials if trial.method == "erm" and not trial.config.class_weighted)
    write(birds / "results" / "papers" / "trials.jsonl", [row(plain, 0.9, worst=0.1)])
    table = dataset_table("waterbirds100", measured(birds / "results", birds / "studies"), published())
    assert cells(table, "ERM, paper's settings")[1] == "10.0"
    assert cells(table, "ERM, our settings")[1] == "35.0 ± 7.1"
    assert cells(table, "ERM, class-weighted")[1] == "20.0"  # by one protocol alone


def test_a_moved_line_is_told_from_none(birds: Path) -> None:
    known = measured(birds / "results", birds / "studies")
    text = dataset_table("waterbirds100", known, published())
    name = "IPG, our settings, line moved: 124 real pairs, α 0.1, every 4"
    assert cells(text, name)[1] == "90.0"
    assert cells(text, "ERM, class-weighted, line moved")[1] == "50.0"
    assert text.index("IPG, our settings:") < text.index("ERM, class-weighted, line moved")
    assert "| decision |" in results_page(known, published(), [])


def test_pairs_that_were_made_otherwise_are_told_apart(birds: Path) -> None:
    """Else two lines would have the same settings and other figures; who uses no pairs has no builder of them."""
    known = measured(birds / "results", birds / "studies")
    assert "pair builder" not in results_page(known, published(), [])  # all are counterparts
    file = birds / "results" / "birds" / "trials.jsonl"
    rows = read_rows(file)
    for line in rows:
        if line["config"]["decision"] != "argmax" and line["method"] == "ipg":
            line["config"]["pair_builder"] = "background"
    write(file, rows)
    found = measured(birds / "results", birds / "studies")
    page = results_page(found, published(), [])
    assert [line.count("| counterparts |") for line in page.splitlines() if line.startswith("| IPG |")] == [1, 0]
    assert [line.count("| background |") for line in page.splitlines() if line.startswith("| IPG |")] == [0, 1]
    table = study_table(found[0], published())
    assert [line.settings["pair_builder"] for line in table.lines] == [
        *("counterparts", None, None),
        *(None, "background", None),
    ]


def test_a_studys_table_has_the_papers_figures_of_photographs_too(birds: Path) -> None:
    """Of test images alone: what is measured on others is nothing that the paper has a figure of."""
    (found,) = measured(birds / "results", birds / "studies")
    table = study_table(found, published())
    differences = [line.difference("worst_group") for line in table.lines]
    # 82 where the paper has 86.3 with 124 pairs, 35 where its plain training has 37.9, 90 with the line moved
    assert differences == [pytest.approx(-4.3), pytest.approx(-2.9), None, None, pytest.approx(3.7), None]
    assert "in points. On photographs the paper's are of ResNet-50. Accuracy" in table.notes[0]
    found = replace(found, split="validation")
    elsewhere = study_table(found, published())
    assert not any(line.paper for line in elsewhere.lines)
    assert "paper" not in elsewhere.head
    assert "Difference" not in elsewhere.notes[0]


def test_repairs_have_a_table_of_their_own_and_no_figure_of_the_paper(birds: Path) -> None:
    text = BIRDS.replace('model = "mobilenetv2_100"\nweights = "net.safetensors"', 'start = "plain"\nepochs = 3')
    (birds / "studies" / "mended.toml").write_text(text.replace('"tuned"', '"repair"'), encoding="utf-8")
    trials = load_study(birds / "studies" / "mended.toml").trials
    rows = [row(trial, 0.9, worst=0.8 if trial.method == "ipg" else 0.3) for trial in trials[:6]]
    for line in rows:
        line["config"] |= {"pair_file": "made", "pairs": 124, "pair_builder": "counterparts", "model": "some_net"}
    write(birds / "results" / "mended" / "trials.jsonl", rows)
    places = [f"<!-- results:{name} -->\n<!-- /results:{name} -->" for name in ("waterbirds100", "mended")]
    (birds / "README.md").write_text("\n".join(places), encoding="utf-8")
    assert main(arguments(birds, "--write")) == 0
    whole, _, own = (birds / "README.md").read_text(encoding="utf-8").partition("<!-- results:mended -->")
    name = "IPG, repaired: 124 real pairs, α 0.1, every 4"
    assert cells(own, name) == [name, "80.0 ± 0.0", "49 to 94", "2", "90.0 ± 0.0", "80.0 ± 0.0", "2.0"]
    assert cells(own, "ERM, class-weighted, 3 epochs more")[1] == "30.0 ± 0.0"
    assert "Network: `some_net`, where" in own
    assert "repaired" not in whole
    assert "3 epochs" not in whole


def test_a_part_of_the_papers_data_stands_beside_the_whole(birds: Path) -> None:
    """The accuracy table's spread, 8.1, and not that of the ablation, which has 8.8 for the same mean."""
    text = (birds / "studies" / "birds.toml").read_text(encoding="utf-8").replace("waterbirds100", "celeba_subset")
    (birds / "studies" / "birds.toml").write_text(text, encoding="utf-8")
    file = birds / "results" / "birds" / "trials.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("waterbirds100", "celeba_subset"), encoding="utf-8")
    text = dataset_table("celeba_subset", measured(birds / "results", birds / "studies"), published())
    assert "paper, ResNet-50, all data" in text
    assert cells(text, "IPG, our settings: 124 real pairs, α 0.1, every 4")[-1] == "74.7 ± 8.1"
