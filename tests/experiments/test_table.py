"""Rows in, tables out: every figure of these tables was worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ipg.data.table import ImageTable
from ipg.experiments.arms import SUITED, arms_of, collapsed, figure_of, published, same_run, spread
from ipg.experiments.store import read_rows
from ipg.experiments.study import ADDED, Study, Trial, load_study, own_options
from ipg.experiments.table import fill, main
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rivals import rivals_table
from ipg.experiments.tables.rows import measured
from ipg.experiments.tables.short import dataset_table
from ipg.experiments.tables.text import NONE
from ipg.training.materials import suited_model

STUDY = """
dataset = "colored_mnist"
seeds = 3
[base]
epochs = 2
schedule = "constant"
pair_batch = 64
margin = 0.08
selection = "training_environments"
[[arm]]
method = "erm"
protocol = "paper"
[[arm]]
method = "ipg"
protocol = "paper"
config = { pairs = 124, alpha = 0.5, every = 2 }
[[arm]]
method = "joint"
protocol = "paper"
seeds = 1
config = { pairs = 124, options = { order = "sum", loss = "alignment" } }
"""
TUNING = """
dataset = "colored_mnist"
metrics_split = "search"
seeds = [100]
[base]
pairs = 40
[[arm]]
method = "ipg"
protocol = "tuning"
config = { alpha = 0.1 }
[[arm]]
method = "ipg"
protocol = "tuning"
config = { alpha = 0.2 }
"""
TUNED = """
dataset = "colored_mnist"
seeds = 1
[base]
pairs = 40
[[arm]]
method = "ipg"
protocol = "tuned"
config = { alpha = 0.2 }
"""
ORIGIN = ("hardware", "versions", "commit", "date")
PAGE = "before\n<!-- results:colored_mnist -->\nold\n<!-- /results:colored_mnist -->\nafter\n"


def metrics(average: float, worst: float) -> dict[str, Any]:
    groups = {"low, red": 1.0, "low, green": worst, "high, red": 0.5, "high, green": None}
    return {
        "average": average,
        "group_mean": 0.5,
        "worst_group": worst,
        "groups": {name: {"accuracy": share, "count": 0 if share is None else 10} for name, share in groups.items()},
        "pair_disagreement": 0.25,
    }


def row(trial: Trial, average: float, *, worst: float = 0.0, last: float = 0.5, seconds: float = 2.0) -> dict[str, Any]:
    """A row of `trial` as the runner writes it."""
    config = trial.config.flat()
    return {
        "dataset": trial.dataset,
        "method": trial.method,
        "protocol": trial.protocol,
        "seed": trial.seed,
        "config": {name: value for name, value in config.items() if name not in ("seed", "device", "data_path")},
        "split": "search" if trial.protocol == "tuning" else "test",
        "metrics": metrics(average, worst),
        "last_metrics": metrics(last, worst),
        "seconds": seconds,
        "hardware": "a machine",
        "versions": {"ipg": "1", "python": "3.99", "torch": "9.9"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A page with markers, three studies, and rows of all that they ask for but one seed of IPG and all of joint."""
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    for name, text in (("first", STUDY), ("tuned", TUNED), ("tuning", TUNING)):
        file = tmp_path / "studies" / f"{name}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        trials = load_study(file).trials
        rows = {
            # ERM 10, 20, 30 %: mean 20, deviation 10; IPG 70, 72 %: mean 71, deviation sqrt(2) = 1.4
            "first": lambda trials: [
                *(row(trial, share, last=share) for trial, share in zip(trials[:3], (0.1, 0.2, 0.3), strict=True)),
                row(trials[3], 0.70, worst=0.60, last=0.50, seconds=3.0),
                row(trials[4], 0.72, worst=0.64, last=0.52, seconds=6.0),
            ],
            "tuned": lambda trials: [row(trials[0], 0.715)],
            "tuning": lambda trials: [row(trials[0], 0.6), row(trials[1], 0.7)],
        }[name](trials)
        write(tmp_path / "results" / name / "trials.jsonl", rows)
    return tmp_path


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in rows), encoding="utf-8")


def arguments(project: Path, what: str) -> list[str]:
    return [what, str(project / "README.md"), "--studies", str(project / "studies")]


def cells(text: str, start: str) -> list[str]:
    """The cells of the table line that begins with `start`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def short_table(project: Path) -> str:
    return dataset_table("colored_mnist", measured(project / "results", project / "studies"), published())


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


RIVALS = """
dataset = "colored_mnist"
seeds = 2
[base]
model = "mnist_cnn"
epochs = 2
pairs = 388
selection = "training_environments"
[[arm]]
method = "erm"
protocol = "unified"
[[arm]]
method = "dair"
protocol = "unified"
config = { options = { augment = "random", weight = 3.0 } }
[[arm]]
method = "dair"
protocol = "unified"
config = { options = { augment = "swap" } }
[[arm]]
method = "ipg"
protocol = "unified"
"""


@pytest.fixture
def rivals(project: Path) -> Path:
    """The project with a study of the unified protocol; of the second DAIR there is no row."""
    file = project / "studies" / "colored_mnist_unified.toml"
    file.write_text(RIVALS, encoding="utf-8")
    trials = load_study(file).trials
    values = ((0.2, 10.0), (0.3, 14.0), (0.6, 30.0), (0.7, 30.0), None, None, (0.75, 15.0), (0.71, 17.0))
    rows = [
        row(trial, value[0], seconds=value[1]) | {"preparing_seconds": 2.0}
        for trial, value in zip(trials, values, strict=True)
        if value is not None
    ]
    write(project / "results" / "colored_mnist_unified" / "trials.jsonl", rows)
    marks = "<!-- results:colored_mnist_unified -->\n<!-- /results:colored_mnist_unified -->\n"
    (project / "README.md").write_text(PAGE + marks, encoding="utf-8")
    return project


def test_methods_under_one_protocol_are_ranked_with_their_needs_and_their_time(rivals: Path) -> None:
    """ERM takes 8 and 12 seconds without preparing: median 10; DAIR 28, IPG 13 and 15."""
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert cells(text, "IPG") == ["IPG", "pairs", "73.0 ± 2.8", "0.0 ± 0.0", "1.4 ×", "2", "72.1 ± 1.2"]
    name = "DAIR, random copies"
    assert cells(text, name)[:5] == [name, cells(text, name)[1], "65.0 ± 7.1", "0.0 ± 0.0", "2.8 ×"]
    assert cells(text, "ERM") == ["ERM", "–", "25.0 ± 7.1", "0.0 ± 0.0", "1 ×", "2", "16.1 ± 0.8"]
    assert text.index("| IPG") < text.index("| DAIR") < text.index("| ERM")
    assert "opposite colour" not in text  # has no row


def test_a_method_that_takes_the_shortcut_the_other_way_round_does_not_lead(rivals: Path) -> None:
    """DAIR's rows made such: more of all images than IPG, and none of its worst group."""
    file = rivals / "results" / "colored_mnist_unified" / "trials.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for found in rows:
        reads_colour = found["method"] == "dair"
        found["metrics"] |= {"average": 0.9} if reads_colour else {"worst_group": found["metrics"]["average"] / 2}
    write(file, rows)
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert cells(text, "DAIR, random copies")[2:4] == ["90.0 ± 0.0", "0.0 ± 0.0"]
    assert text.index("| IPG") < text.index("| ERM") < text.index("| DAIR")


def test_seconds_of_trials_that_shared_a_gpu_do_not_count(rivals: Path) -> None:
    """Of IPG one had the GPU to itself, which is too few to tell by; of DAIR none had."""
    file = rivals / "results" / "colored_mnist_unified" / "trials.jsonl"
    rows = read_rows(file)
    for line in rows:
        if line["method"] == "dair" or (line["method"], line["seed"]) == ("ipg", 0):
            line["sharing"] = 6
    write(file, rows)
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert [cells(text, name)[4] for name in ("IPG", "DAIR, random copies", "ERM")] == ["–", "–", "1 ×"]


def test_the_short_table_does_not_mix_protocols(rivals: Path) -> None:
    before = short_table(rivals)
    (rivals / "results" / "colored_mnist_unified" / "trials.jsonl").unlink()
    assert before == short_table(rivals)


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


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"low, red": 1.0, "low, green": 1.0, "high, red": 0.0, "high, green": 0.0}, True),
        ({"low, red": 0.0, "low, green": 0.0, "high, red": 1.0, "high, green": 1.0}, True),
        ({"low, red": 1.0, "low, green": None, "high, red": 0.0, "high, green": None}, True),
        ({"low, red": 1.0, "low, green": 0.0, "high, red": 0.0, "high, green": 1.0}, False),  # by colour
        ({"low, red": 1.0, "low, green": 0.999, "high, red": 0.0, "high, green": 0.0}, False),
        ({"low, red": 1.0, "low, green": 1.0, "high, red": 1.0, "high, green": 1.0}, False),
        ({"low, red": 0.0, "low, green": 0.0, "high, red": 0.0, "high, green": 0.0}, False),
    ],
)
def test_collapsed_means_one_class_for_every_image(shares: dict[str, float | None], expected: bool) -> None:
    groups = {name: {"accuracy": share, "count": 0 if share is None else 5} for name, share in shares.items()}
    assert collapsed(groups) is expected


def test_collapsed_seeds_are_counted_and_not_left_out(project: Path) -> None:
    file = project / "results" / "first" / "trials.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for name, group in rows[3]["metrics"]["groups"].items():
        group["accuracy"] = float(name.startswith("low"))
    write(file, rows)
    text = short_table(project)
    assert "every image: IPG, paper's settings: 124 pairs, α 0.5, every 2: 1 of 2." in " ".join(text.split())
    assert "71.0 ± 1.4" in text


def test_seeds_that_broke_off_count_as_collapsed(project: Path) -> None:
    """Also with two classes left, as where the watch looked at pairs alone."""
    file = project / "results" / "first" / "trials.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rows[3]["collapse"] = "the model has collapsed"
    write(file, rows)
    text = " ".join(short_table(project).split())
    assert "Seeds that predict one class for every image, or whose training broke off: IPG, paper's" in text
    assert "every 2: 1 of 2." in text
    assert "71.0 ± 1.4" in text
    assert "No figure where" not in text
    page = " ".join(results_page(measured(project / "results", project / "studies"), published(), []).split())
    assert "*Collapsed*: seeds that predict one class for every image, or whose training broke off." in page


def nothing(metrics: dict[str, Any]) -> dict[str, Any]:
    groups = {name: {"accuracy": None, "count": 0} for name in metrics["groups"]}
    return {**dict.fromkeys(metrics), "groups": groups}


def test_seeds_that_left_nothing_to_measure_are_told_and_leave_a_dash(project: Path) -> None:
    """A mean over the others would look better than the method is."""
    for name, place in (("first", 3), ("tuning", 1)):
        file = project / "results" / name / "trials.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        empty = nothing(rows[place]["metrics"])
        rows[place] |= {"collapse": "the loss is NaN", "metrics": empty, "last_metrics": empty}
        write(file, rows)
    known = measured(project / "results", project / "studies")
    title = "IPG, paper's settings: 124 pairs, α 0.5, every 2"
    table = short_table(project)
    assert cells(table, title)[1:5] == [NONE, "2 of 3", NONE, NONE]
    told = "No figure where a seed broke off before there was a network to measure:"
    assert f"{told} {title}: 1 of 2." in " ".join(table.split())
    page = " ".join(results_page(known, published(), []).split())
    assert f"{told} IPG: 1 of 2." in page
    assert f"{told} IPG: 1 of 1." in page  # a study on another split, which has no column of collapses
    rivals = " ".join(rivals_table(next(study for study in known if study.name == "first"), published()).split())
    assert f"broke off: IPG: 1 of 2. {told} IPG: 1 of 2." in rivals
    assert rivals.index("| ERM |") < rivals.index("| IPG |")  # what is not known comes last


def test_rows_find_their_arm_by_settings_and_the_rest_is_reported(project: Path) -> None:
    study = load_study(project / "studies" / "first.toml")
    known = row(study.trials[3], 0.7)
    del known["config"]["jitter"]  # written before there was such a setting
    other = row(study.trials[3], 0.7)
    other["config"] = {**other["config"], "alpha": 0.9}
    searched = {**row(study.trials[4], 0.7), "split": "search"}
    arms, unknown = arms_of(study, [other, known, searched])
    assert arms[1].rows == (known,)
    assert unknown == [other, searched]
    write(project / "results" / "first" / "trials.jsonl", [other, known])
    page = results_page(measured(project / "results", project / "studies"), published(), [])
    assert "Rows that no arm of the study file asks for, left out above: 1." in page


def test_a_row_without_a_setting_has_the_value_all_had_before_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two arms that differ in a new setting alone, an old row is of the one with the old value."""
    text = STUDY.replace("seeds = 3", "seeds = 1").partition('[[arm]]\nmethod = "ipg"')[0]
    arm = '[[arm]]\nmethod = "erm"\nprotocol = "paper"\nconfig = { jitter = 0.1 }\n'
    (project / "studies" / "new.toml").write_text(text + arm, encoding="utf-8")
    study = load_study(project / "studies" / "new.toml")
    old = row(study.trials[0], 0.5)
    del old["config"]["jitter"]
    assert [len(arm.rows) for arm in arms_of(study, [old])[0]] == [1, 0]  # the first that nothing speaks against
    monkeypatch.setitem(ADDED, "jitter", 0.1)
    arms, unknown = arms_of(study, [old])
    assert [len(arm.rows) for arm in arms] == [0, 1]
    assert unknown == []


def test_what_a_trial_leaves_open_agrees_with_what_came_of_it(project: Path) -> None:
    study = load_study(project / "studies" / "tuned.toml")
    assert study.trials[0].config.precision == "auto"
    resolved = row(study.trials[0], 0.5)
    resolved["config"] |= {"precision": "bf16", "engine": "captured"}
    arms, unknown = arms_of(study, [resolved])
    assert [len(arm.rows) for arm in arms] == [1]
    assert unknown == []


JOINT = '[[arm]]\nmethod = "joint"\nprotocol = "tuned"\n'
SUM = f'{JOINT}config = {{ options = {{ order = "sum" }} }}\n'


def joint(project: Path, arms: str) -> Study:
    """A study of `joint` by default, with `order = "sum"`, or both."""
    file = project / "studies" / "joint.toml"
    file.write_text(f'dataset = "colored_mnist"\nseeds = 1\n{arms}', encoding="utf-8")
    return load_study(file)


def came(trial: Trial, average: float, **changes: Any) -> dict[str, Any]:
    """A row with all that a run settles: every option, the network that was taken, the key."""
    plain = row(trial, average)
    config = {**plain["config"], **own_options(trial.config), "model": trial.config.model or "mnist_cnn"}
    return {**plain, "key": trial.key, "study": trial.study, "config": config, **changes}


@pytest.mark.parametrize("key", [True, False])
def test_a_row_is_not_of_an_arm_that_leaves_its_option_at_the_default(project: Path, key: bool) -> None:
    """Also where rows are of a time, or a study, that has other keys."""

    def found(study: Study, rows: list[dict[str, Any]]) -> list[list[str]]:
        if not key:
            rows = [{name: value for name, value in line.items() if name != "key"} for line in rows]
        arms, unknown = arms_of(study, rows)
        assert unknown == []
        return [[line["config"]["order"] for line in arm.rows] for arm in arms]

    both = joint(project, JOINT + SUM)
    rows = [came(trial, 0.5) for trial in both.trials]
    assert found(both, rows[1:]) == [[], ["sum"]]
    assert found(both, rows[:1]) == [["task_first"], []]
    assert found(both, rows) == [["task_first"], ["sum"]]
    assert found(joint(project, SUM), rows[1:]) == [["sum"]]


def test_options_agree_whatever_they_were_written_as(project: Path) -> None:
    """On the command line a number is text, in a row it is a number."""
    (trial,) = joint(project, JOINT.replace("joint", "joint_weighted")).trials
    told = replace(trial, config=trial.config.with_changes(options={"weight": "2"}))
    found = came(told, 0.5, key="of another study")
    assert found["config"]["weight"] == 2.0
    assert same_run(found, told)
    assert not same_run(found, trial)


def test_a_trial_that_names_no_network_has_the_row_of_the_one_it_took(project: Path) -> None:
    study = joint(project, JOINT)
    (trial,) = study.trials
    assert trial.config.model is None
    mine = came(trial, 0.5)
    assert mine["config"]["model"] == "mnist_cnn"
    older = {name: value for name, value in mine.items() if name != "key"}
    for line in (mine, older):
        (arm,), unknown = arms_of(study, [line])
        assert (arm.rows, unknown) == ((line,), [])
    named = {**older, "config": {**older["config"], "model": "linear"}}
    (arm,), unknown = arms_of(study, [named])
    assert (arm.rows, unknown) == ((), [named])
    begun = replace(trial, config=trial.config.with_changes(start="runs/first"))
    brought = came(begun, 0.5)
    brought["config"]["model"] = "linear"  # the one that it goes on from
    assert same_run(brought, begun)


def test_networks_that_are_chosen_for_data_are_known(make_table: Callable[..., ImageTable]) -> None:
    def sized(side: int) -> ImageTable:
        return replace(make_table(), images=torch.zeros(200, 2, side, side, dtype=torch.uint8))

    assert {suited_model(sized(side)) for side in (8, 27, 28, 63)} == set(SUITED)


def test_a_row_by_key_comes_before_one_by_settings(project: Path) -> None:
    """The study once said in other words what it says now; what it makes now is what counts."""
    study = joint(project, JOINT)
    (trial,) = study.trials
    before, now = came(trial, 0.1, key="another"), came(trial, 0.2)
    for rows in ([before, now], [now, before]):
        (arm,), unknown = arms_of(study, rows)
        assert (arm.rows, unknown) == ((now,), [before])
    (arm,), unknown = arms_of(study, [before])
    assert (arm.rows, unknown) == ((before,), [])


def test_two_rows_of_one_key_are_refused_and_those_of_another_split_left(project: Path) -> None:
    study = joint(project, JOINT)
    (trial,) = study.trials
    with pytest.raises(ValueError, match="2 rows of joint"):
        arms_of(study, [came(trial, 0.1), came(trial, 0.2)])
    searched, tested = came(trial, 0.1, split="search"), came(trial, 0.2)
    (arm,), unknown = arms_of(study, [searched, tested])
    assert (arm.rows, unknown) == ((tested,), [searched])


def test_two_rows_of_one_trial_are_refused(project: Path) -> None:
    study = load_study(project / "studies" / "first.toml")
    twice = [row(study.trials[0], 0.1), row(study.trials[0], 0.2)]
    with pytest.raises(ValueError, match="2 rows of erm"):
        arms_of(study, twice)


def test_published_figures_are_the_papers() -> None:
    figures = published()
    assert sum(figure.method is not None for figure in figures) == 10
    assert sum(figure.table == "tab:perf_colored_mnist" for figure in figures) == 11
    found = {figure.approach: (figure.mean, figure.spread) for figure in figures if figure.dataset == "colored_mnist"}
    assert found["DIAR-RA"] == (73.1, 0.1)
    assert found["NCM"] == (69.3, None)
    assert found["IPG, 388 pairs"] == (72.1, 1.2)


def test_a_number_of_pairs_that_the_paper_has_not_gets_no_figure(project: Path) -> None:
    file = project / "studies" / "tuned.toml"
    file.write_text(TUNED.replace("pairs = 40", "pairs = 41"), encoding="utf-8")
    (arm,), _ = arms_of(load_study(file), [])
    assert figure_of(arm, published()) is None


def test_fill_replaces_what_stands_between_the_markers_alone() -> None:
    filled = fill(PAGE, {"colored_mnist": "new"})
    assert filled == PAGE.replace("old", "new")
    assert fill(filled, {"colored_mnist": "new"}) == filled


@pytest.mark.parametrize("page", ["nothing", "<!-- results:colored_mnist -->\nnever closed\n"])
def test_fill_names_the_markers_that_are_missing(page: str) -> None:
    with pytest.raises(ValueError, match="<!-- /results:colored_mnist -->"):
        fill(page, {"colored_mnist": "new"})


def test_write_then_check_then_a_new_row(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(project, "--check")) == 1
    assert main(arguments(project, "--write")) == 0
    page = (project / "README.md").read_text(encoding="utf-8")
    assert re.match(r"before\n<!-- results:colored_mnist -->\n\| ", page)
    assert page.endswith("<!-- /results:colored_mnist -->\nafter\n")
    assert main(arguments(project, "--check")) == 0

    study = load_study(project / "studies" / "first.toml")
    file = project / "results" / "first" / "trials.jsonl"
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row(study.trials[5], 0.74)) + "\n")
    capsys.readouterr()
    assert main(arguments(project, "--check")) == 1
    assert "README.md is not what the rows give; run python -m ipg.experiments.table" in capsys.readouterr().err
    assert main(arguments(project, "--write")) == 0
    assert "72.0 ± 2.0" in (project / "README.md").read_text(encoding="utf-8")  # 70, 72, 74 %


def test_a_page_edited_by_hand_fails_the_check(project: Path) -> None:
    main(arguments(project, "--write"))
    page = project / "results" / "README.md"
    page.write_text(page.read_text(encoding="utf-8").replace("71.0", "74.9"), encoding="utf-8")
    assert main(arguments(project, "--check")) == 1


def test_a_page_without_markers_is_one_clear_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "README.md").write_text("no place\n", encoding="utf-8")
    assert main(arguments(project, "--write")) == 2
    assert "has no place for a table" in capsys.readouterr().err


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


def test_the_projects_own_pages_are_what_its_rows_give(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(repo_root / "README.md")]) == 0, capsys.readouterr().err
