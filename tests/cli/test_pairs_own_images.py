"""Pairs of one's own images, by the command line: without a split, under other names, in other places."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ipg.config import RunConfig


def read(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def classes(shapes: tuple[str, ...]) -> tuple[str, ...]:
    """The same images as a folder for each class, without a split or an attribute; the options that name them."""
    for row in read("shapes/labels.csv"):
        for kind, home in (("shapes", "classes"), ("masks", "class-masks")):
            path = Path(home) / row["label"] / Path(row["path"]).name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((Path(kind) / row["path"]).read_bytes())
    return ("--data", "classes", "--size", "32")


def built(ipg, options: tuple[str, ...], *more: str, count: int = 6) -> None:
    masks = ("--masks", "class-masks", "--count", str(count), "--output", "pairs")
    done = ipg("pairs", "build", "background", *options, *masks, *more)
    assert done.code == 0, done


TRAIN = ("--model", "small_cnn", "--epochs", "1", "--batch", "8", "--pairs", "pairs", "--held-out-pairs", "2")


def test_pairs_of_a_drawn_split_serve_runs_of_every_seed(ipg, assert_refused, classes: tuple[str, ...]) -> None:
    built(ipg, classes)
    settings = json.loads(Path("pairs/build.json").read_text())["train"]["settings"]
    assert (settings["split_seed"], settings["donors"]) == (0, "images of another class")
    tables = []
    for seed in (0, 1):
        done = ipg("train", *classes, *TRAIN, "--seed", str(seed), "--output", f"runs/{seed}")
        assert done.code == 0, done
        tables.append(json.loads(Path(f"runs/{seed}/config.json").read_text())["data"]["table"])
    assert tables[0] == tables[1]  # the same images are tested on, whichever run is gone on from
    says = ("were made with split_seed 0", "now drawn by split_seed 4", "--split-seed 0", "a column `split`")
    assert_refused("train", *classes, *TRAIN, "--split-seed", "4", "--output", "runs/x", says=says)
    assert ipg("evaluate", "runs/1").code == 0


def test_pairs_that_have_moved_with_their_data_keep_its_split_and_size(
    ipg, assert_refused, classes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(ipg, classes, "--split-seed", "4")

    def accepted(*more: str) -> int:
        return json.loads(ipg("pairs", "audit", "pairs", "--dry-run", "--json", *more).out)["ok"]

    before = accepted()
    project = tmp_path / tmp_path.name
    project.mkdir()
    for name in ("classes", "pairs"):
        Path(name).rename(project / name)
    monkeypatch.chdir(project)
    assert accepted() == before
    assert ipg("pairs", "show", "pairs").code == 0
    project.rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path / "renamed")
    assert_refused("pairs", "audit", "pairs", says=("which is not there; say where with --data",))
    assert accepted("--data", "classes") == before  # by another split they would be of images of another one


def test_a_split_by_another_seed_goes_through_all_commands(
    ipg, classes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    built(ipg, classes, "--split-seed", "4")
    assert ipg("pairs", "audit", "pairs").code in (0, 1)
    assert not any(row["reason"].startswith("another split") for row in read("pairs/manifest.csv"))
    line = (*TRAIN, "--method", "erm", "--split-seed", "4", "--output", "run")
    assert ipg("train", *classes, *line).code == 0
    assert ipg("evaluate", "run").code == 0  # which compares the data with that of the run
    from ipg.cli import pairs_data

    asked: list[int] = []
    list_files = pairs_data.list_files

    def spy(name: str, **options: Any) -> Any:
        asked.append(options["reading"].split_seed)
        return list_files(name, **options)

    monkeypatch.setattr(pairs_data, "list_files", spy)
    assert ipg("evaluate", "--model", "run", "--data", "classes").code == 0
    assert ipg("pairs", "show", "pairs").code == 0
    assert asked == [4, 4]


def test_runs_of_before_the_split_had_a_seed(ipg, classes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    built(ipg, classes, "--split-seed", "2")
    line = (*TRAIN, "--method", "erm", "--seed", "2", "--split-seed", "2", "--output", "run")
    flat = RunConfig.flat
    with monkeypatch.context() as before:
        before.setattr(RunConfig, "flat", lambda config: {k: v for k, v in flat(config).items() if k != "split_seed"})
        assert ipg("train", *classes, *line).code == 0
    assert "split_seed" not in json.loads(Path("run/config.json").read_text())["config"]
    done = ipg("evaluate", "run")
    assert done.code == 0, done


def test_pairs_of_smaller_images_are_not_trained_on(ipg, assert_refused, classes: tuple[str, ...]) -> None:
    built(ipg, classes)
    line = ("train", "--data", "classes", *TRAIN, "--output", "runs/x")
    says = ("pairs are of images of 32 pixels, the network is to see 48", "build them again with --size 48")
    assert_refused(*line, "--size", "48", says=says)
    assert ipg(*line, "--size", "16").code == 0


def test_what_pasted_comes_from_is_said(ipg, assert_refused, classes: tuple[str, ...]) -> None:
    options = ("--count", "4", "--output")
    done = ipg("pairs", "build", "background", *classes, "--masks", "class-masks", *options, "my pairs")
    assert done.out == (
        "classes has no attribute: what is pasted comes from images of another class\n"
        "4 pairs are in my pairs/manifest.csv; look at them with: ipg pairs show 'my pairs'\n"
    )
    for builder in ("random", "matched"):
        assert_refused(
            "pairs", "build", builder, *classes, *options, "x", says=(f"{builder} pairs", "needs a column attribute")
        )


def test_rows_of_both_splits(ipg, shapes: tuple[str, ...]) -> None:
    rows = [row for row in read("shapes/labels.csv") if row["split"] != "test"]
    Path("counterparts").mkdir()
    for row in rows:
        Image.new("RGB", (32, 32), (9, 90, 200)).save(f"counterparts/{Path(row['path']).name}")
    lines = [f"{row['path']},{Path(row['path']).name}" for row in rows]
    Path("mine.csv").write_text("\n".join(["image,counterpart", *lines]))
    line = ("pairs", "build", "counterparts", *shapes, "--table", "mine.csv", "--output", "a")
    held = sum(row["split"] == "validation" for row in rows)
    train = len(rows) - held
    done = ipg(*line)
    assert done.out.splitlines()[0] == f"{held} rows are of validation images: add them with --split validation"
    done = ipg(*line, "--split", "validation")
    assert f"{held} pairs were added; {len(rows)} pairs are now in a/manifest.csv; look at them" in done.out
    assert "--split" not in done.out  # those of train are there
    again = ipg(*line).out.splitlines()
    assert again[0] == f"{train} of {train} pairs are there already; nothing is left to make"
    assert again[1].startswith(f"{len(rows)} pairs are in a/manifest.csv")  # nothing was added
    done = ipg(*line[:-1], "b", "--split", "validation")
    assert f"{train} rows are of train images: add them with --split train" in done.out


def test_a_column_whose_name_has_a_space_is_quoted(assert_refused, shapes: tuple[str, ...]) -> None:
    table = Path("shapes/labels.csv")
    table.write_text(table.read_text().replace("path,label", "File Name,label"))
    assert_refused("data", "check", "shapes/labels.csv", says=("is it --path-column 'File Name'?",))


def test_columns_of_other_names(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    table = Path("shapes/labels.csv")
    table.write_text(table.read_text().replace("path,label,attribute,split", "filename,class,background,split"))
    guess = "is it --path-column filename --label-column class?"
    for line in (("data", "check", "shapes/labels.csv"), ("train", *shapes), ("pairs", "build", "random", *shapes)):
        more = ("--count", "2", "--output", "p") if line[0] == "pairs" else ()
        assert_refused(*line, *more, says=("has no column path, label", guess))
    named = ("--path-column", "filename", "--label-column", "class", "--attribute-column", "background")
    done = ipg("data", "check", "shapes/labels.csv", "--size", "32", *named)
    assert done.code == 0
    assert "label and attribute" in done.out
    line = ("pairs", "build", "random", *shapes, *named, "--split", "validation", "--count", "2", "--output", "pairs")
    assert ipg(*line).code == 0
    assert ipg("pairs", "audit", "pairs").code == 0  # the folder knows the columns
    done = ipg("train", *shapes, *named, *TRAIN, "--method", "erm", "--output", "run")
    assert done.code == 0, done
    assert ipg("evaluate", "run").code == 0


def test_pairs_are_found_from_elsewhere(
    ipg, assert_refused, shapes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ipg("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output", "p").code == 0
    Path("other").mkdir()
    home = Path.cwd()
    monkeypatch.chdir(home / "other")
    assert ipg("pairs", "show", "../p").code == 0
    record = json.loads((home / "p/build.json").read_text())
    record["validation"]["settings"]["data"] = "shapes/labels.csv"  # as older folders have it
    (home / "p/build.json").write_text(json.dumps(record))
    assert ipg("pairs", "show", "../p").code == 0
    assert ipg("pairs", "audit", "../p", "--data", "../shapes/labels.csv").code == 0
    (home / "shapes").rename(home / "moved")
    assert_refused("pairs", "show", "../p", says=("the pairs are of shapes/labels.csv, which is not there", "--data"))
    assert ipg("pairs", "show", "../p", "--data", "../moved/labels.csv").code == 0


def test_a_folder_of_something_else_is_left_alone(ipg, assert_refused, finished: Path, shapes: tuple[str, ...]) -> None:
    line = ("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output")
    before = sorted(path.name for path in finished.iterdir())
    assert_refused(*line, finished, says=("is not empty and not a folder of pairs", "name another --output"))
    assert sorted(path.name for path in finished.iterdir()) == before
    assert_refused(*line, "shapes", says=("it holds images",))
    Path("empty").mkdir()
    assert ipg(*line, "empty").code == 0
