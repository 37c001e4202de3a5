"""`ipg evaluate`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path


def test_the_numbers_are_those_of_the_result(ipg, embedded_runs: Path) -> None:
    folder = str(embedded_runs / "guided")
    done = ipg("evaluate", folder, "--json")
    assert done.code == 0
    (told,) = json.loads(done.out).values()
    told.pop("intervals")
    assert told == json.loads((embedded_runs / "guided" / "result.json").read_text())["metrics"]


def test_every_share_has_its_interval_in_json_too(ipg, finished: Path) -> None:
    from ipg.evaluation.statistics import wilson

    (metrics,) = json.loads(ipg("evaluate", finished, "--json").out).values()
    found = metrics["intervals"]
    assert list(found) == ["average", "worst_group", "groups", "pair_disagreement"]
    groups = {name: (group["share"], group["count"]) for name, group in found["groups"].items()}
    assert groups == {name: (group["accuracy"], group["count"]) for name, group in metrics["groups"].items()}
    assert found["average"]["count"] == sum(count for _, count in groups.values())
    assert groups[found["worst_group"]["group"]] == (metrics["worst_group"], found["worst_group"]["count"])
    assert found["pair_disagreement"]["count"] == 8
    for name in ("average", "worst_group", "pair_disagreement"):
        assert found[name]["share"] == metrics[name]
    for one in (*(found[name] for name in ("average", "worst_group", "pair_disagreement")), *found["groups"].values()):
        assert (one["low"], one["high"]) == wilson(round(one["share"] * one["count"]), one["count"])


def test_what_was_not_measured_has_no_interval(ipg, bars: list[str]) -> None:
    assert ipg("train", *bars, "--held-out-pairs", "0", "--output", "unpaired").code == 0
    (metrics,) = json.loads(ipg("evaluate", "unpaired", "--json").out).values()
    assert metrics["pair_disagreement"] is None
    assert metrics["intervals"]["pair_disagreement"] == {"share": None, "low": None, "high": None, "count": 0}


def test_runs_stand_side_by_side(ipg, embedded_runs: Path) -> None:
    done = ipg("evaluate", embedded_runs / "guided", embedded_runs / "plain")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    cells = {}
    for line in done.out.splitlines():
        if line.startswith("│"):
            label, *values = (cell.strip() for cell in line.strip("│").split("│"))
            cells[label] = values
    for column, name in enumerate(("guided", "plain")):
        metrics = json.loads((embedded_runs / name / "result.json").read_text())["metrics"]
        assert cells["average"][column] == f"{100 * metrics['average']:.1f}"
        assert cells["worst group"][column] == f"{100 * metrics['worst_group']:.1f}"
        assert cells["pairs that disagree"][column] == f"{100 * metrics['pair_disagreement']:.1f}"
        assert cells["garment, green"][column] == f"{100 * metrics['groups']['garment, green']['accuracy']:.1f}"
    assert "seconds" not in cells


def test_every_share_has_its_interval_below_it(ipg, finished: Path) -> None:
    from ipg.evaluation.statistics import wilson

    (metrics,) = json.loads(ipg("evaluate", finished, "--json").out).values()
    out = ipg("evaluate", finished).out
    lines = out.splitlines()

    def below(label: str) -> str:
        position = next(number for number, line in enumerate(lines) if line.startswith(f"│ {label} "))
        return lines[position + 1].strip("│").split("│")[1].strip()

    def interval(share: float, count: int) -> str:
        low, high = wilson(round(share * count), count)
        return f"{100 * low:.1f} to {100 * high:.1f}"

    groups = metrics["groups"]
    assert below("average") == interval(metrics["average"], sum(group["count"] for group in groups.values()))
    for name, group in groups.items():
        assert below(f"  {name}") == interval(group["accuracy"], group["count"])
    worst = min(group["count"] for group in groups.values() if group["accuracy"] == metrics["worst_group"])
    assert below("worst group") == interval(metrics["worst_group"], worst)
    assert below("pairs that disagree") == interval(metrics["pair_disagreement"], 8)
    assert "95 % confidence" in out
    assert max(map(len, lines)) <= 80


def test_a_run_that_gives_every_image_one_class_is_not_praised(ipg, bars: list[str], finished: Path) -> None:
    fast = ("--method", "erm", "--learning-rate", "1", "--schedule", "constant")
    assert ipg("train", *bars, *fast, "--output", "flat").code == 0
    out = ipg("evaluate", finished, "flat").out
    assert "flat gives every image the same class: its pairs agree because everything does." in out
    assert f"{finished.name} gives every" not in out


def test_another_split(ipg, assert_refused, finished: Path) -> None:
    done = ipg("evaluate", finished, "--split", "validation", "--json")
    (metrics,) = json.loads(done.out).values()
    row = json.loads((finished / "metrics.jsonl").read_text())
    assert {name: metrics[name] for name in row["validation"]} == row["validation"]
    said = ipg("evaluate", finished, "--split", "validation").out
    assert said.startswith("Validation images, % right\n")
    for name in ("val", "Valid", "VALIDATION"):
        assert ipg("evaluate", finished, "--split", name).out == said
    assert_refused(
        "evaluate", finished, "--split", "valdation", says=("no split 'valdation'", "did you mean validation")
    )


def test_runs_on_different_images_stand_in_tables_of_their_own(
    ipg, finished: Path, bars, make_table, monkeypatch
) -> None:
    from ipg.data.load import DATASETS

    monkeypatch.setitem(DATASETS, "poles", lambda path, size, seed: replace(make_table(seed=seed), name="poles"))
    assert ipg("train", *bars, "--data", "poles", "--output", "poles").code == 0
    assert ipg("train", *bars, "--method", "oracle", "--output", "oracle").code == 0
    out = ipg("evaluate", finished, "poles", "oracle").out
    titles = [line for line in out.splitlines() if line.startswith("Test images")]
    assert titles == ["Test images of bars, % right", "Test images of poles, % right"]
    first, second = out.split(titles[1])
    assert "oracle" in first  # which sees no colour, in the same images
    assert "oracle" not in second
    assert "their figures are not comparable" in out
    assert "not comparable" not in ipg("evaluate", finished, "oracle").out


def test_many_runs_with_long_names_fit_eighty_columns(ipg, finished: Path) -> None:
    folders = []
    for number in range(8):
        folder = finished.with_name(f"[a folder] with a name that goes on and on {number}")
        folder.symlink_to(finished)
        folders.append(folder.relative_to(finished.parent))
    out = ipg("evaluate", *folders).out
    assert max(map(len, out.splitlines())) <= 80
    (value,) = json.loads(ipg("evaluate", finished, "--json").out).values()
    rows = re.findall(r"│ average +│(.*)│", out)
    numbers = [number.strip() for row in rows for number in row.split("│")]
    assert numbers == [f"{100 * value['average']:.1f}"] * 8
    assert "[a" in out
