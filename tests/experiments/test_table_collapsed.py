"""Seeds that collapsed or broke off: counted and told in every table, never left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from experiments.table_rows import cells, short_table, write

from ipg.experiments.arms import collapsed, published
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rivals import rivals_table
from ipg.experiments.tables.rows import measured
from ipg.experiments.tables.text import NONE


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


def test_seeds_that_began_again_are_told_with_their_last_rates(project: Path) -> None:
    file = project / "results" / "first" / "trials.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    begun = "Seeds that collapsed and began again, each time with half the learning rate: "
    assert begun not in " ".join(short_table(project).split())
    rows[3]["restarted"] = 2
    last = rows[3]["config"]["learning_rate"] / 4
    write(file, rows)
    text = " ".join(short_table(project).split())
    assert f"{begun}IPG, paper's settings: 124 pairs, α 0.5, every 2: 1 of 2 (last with {last:g})." in text
    found = measured(project / "results", project / "studies")
    assert f"{begun}IPG: 1 of 2 (last with {last:g})." in " ".join(results_page(found, published(), []).split())
    (study,) = (one for one in found if one.name == "first")
    assert begun in " ".join(rivals_table(study, published()).split())
