"""`ipg pairs merge`: real pairs topped up with composed ones."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ipg.pairs.rows import Manifest


def read(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def two(ipg, shapes: tuple[str, ...]) -> tuple[str, ...]:
    """Two folders of pairs: few of the user's own, and many composed ones, some held out; the options of both."""
    composed = ("pairs", "build", "background", *shapes, "--masks", "masks", "--output", "composed")
    assert ipg(*composed, "--count", "16").code == 0
    assert ipg(*composed, "--count", "4", "--split", "validation").code == 0
    lines = [
        "image,counterpart,label",
        "images/00.png,a.png,disc",
        "images/02.png,b.png,disc",
        "images/01.png,c.png,square",
    ]
    Path("mine.csv").write_text("\n".join(lines), encoding="utf-8")
    Path("mine").mkdir()
    for number, name in enumerate("abc"):
        Image.new("RGB", (32, 32), (200, number, 7)).save(f"mine/{name}.png")
    own = ("pairs", "build", "counterparts", *shapes, "--table", "mine.csv", "--images", "mine", "--output", "real")
    assert ipg(*own).code == 0
    return shapes


def test_real_pairs_are_topped_up_with_composed_ones(ipg, two: tuple[str, ...]) -> None:
    done = ipg("pairs", "merge", "real", "composed", "--count", "10", "--output", "both")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "train: 3 counterparts, 7 background\nvalidation: 4 background\n"
        "14 pairs are in both/manifest.csv; look at them with: ipg pairs show both\n"
    )
    rows = [row for row in read("both/manifest.csv") if row["split"] == "train"]
    assert [row["label"] for row in rows].count("disc") == 5
    assert len({row["made_of"].split("|")[0] for row in rows}) == 10  # no image twice
    made = {row["made_of"]: row for folder in ("real", "composed") for row in read(f"{folder}/manifest.csv")}
    for row in rows:
        before = made[row["made_of"]]
        home = "real" if row["builder"] == "counterparts" else "composed"
        for name in ("second",) if home == "real" else ("second", "mask"):
            one, other = (
                np.asarray(Image.open(Path(at) / cells[name])) for at, cells in ((home, before), ("both", row))
            )
            assert np.array_equal(one, other)
    again = ipg("pairs", "merge", "real", "composed", "--count", "10", "--output", "both")
    assert "14 pairs are in both/manifest.csv" in again.out
    run = ("--pairs", "both", "--epochs", "1", "--batch", "8", "--pair-batch", "4", "--output", "run")
    assert ipg("train", *two, *run).code == 0
    assert json.loads(Path("run/config.json").read_text(encoding="utf-8"))["config"]["pairs"].endswith("both")


def test_rejected_pairs_are_not_merged(ipg, two: tuple[str, ...]) -> None:
    manifest = Manifest.read("real")
    manifest.with_pairs([replace(pair, status="rejected") for pair in manifest.pairs]).write()
    assert "train: 16 background\n" in ipg("pairs", "merge", "real", "composed", "--output", "both").out


def test_what_cannot_be_merged_is_said(ipg, assert_refused, two: tuple[str, ...]) -> None:
    assert_refused("pairs", "merge", "real", "--output", "both", says=("only real is named", "two folders"))
    assert_refused("pairs", "merge", "real", "nothing", "--output", "both", says=("nothing",))
    few = ("disc", "square", "or fewer, or build more pairs to merge")
    assert_refused("pairs", "merge", "real", "composed", "--count", "400", "--output", "both", says=few)
    small = ("--data", "shapes/labels.csv", "--size", "16", "--masks", "masks", "--count", "4", "--output", "small")
    assert ipg("pairs", "build", "background", *small).code == 0
    assert_refused("pairs", "merge", "real", "small", "--output", "both", says=("other images", "size is 32 and 16"))
    assert not Path("both").exists()


def test_a_manifest_that_does_not_say_its_data_is_merged_where_it_is_named(
    ipg, assert_refused, shapes: tuple[str, ...]
) -> None:
    Path("own").mkdir()
    for number in (0, 2):
        row = f"data:images/{number:02d}.png,{number}.png,disc,train"
        Path(f"own/{number}.csv").write_text(f"first,second,label,split\n{row}\n", encoding="utf-8")
        Image.new("RGB", (32, 32), (9, number, 7)).save(f"own/{number}.png")
    line = ("pairs", "merge", "own/0.csv", "own/2.csv", "--output", "both")
    assert_refused(*line, says=("does not say which data set", "--data"))
    done = ipg(*line, "--data", "shapes/labels.csv")
    assert (done.code, done.err) == (0, "")
    assert [row["first"] for row in read("both/manifest.csv")] == ["data:images/00.png", "data:images/02.png"]


def test_an_image_that_is_the_second_of_a_pair_has_one_too(ipg, shapes: tuple[str, ...]) -> None:
    """Of pairs whose members are both of the data set no image comes twice, whichever member it is."""
    Path("own").mkdir()
    Image.new("RGB", (32, 32), (9, 9, 7)).save("own/a.png")
    rows = [
        "data:images/00.png,data:images/02.png,disc,train",
        "data:images/02.png,data:images/08.png,disc,train",
        "data:images/08.png,data:images/00.png,disc,train",
        "data:images/02.png,a.png,disc,train",
        "data:images/08.png,a.png,disc,train",
    ]
    for number, row in enumerate(rows):
        Path(f"own/{number}.csv").write_text(f"first,second,label,split\n{row}\n", encoding="utf-8")
    files = [f"own/{number}.csv" for number in range(len(rows))]
    done = ipg("pairs", "merge", *files, "--data", "shapes/labels.csv", "--output", "both")
    assert (done.code, done.err) == (0, "")
    assert [row["first"] for row in read("both/manifest.csv")] == ["data:images/00.png", "data:images/08.png"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("data:images/04.png,a.png,zebra,train", ("unknown label", "'zebra'")),
        ("data:images/01.png,a.png,disc,train", ("labels differ", "images/01.png is square, the pair disc")),
        ("data:images/06.png,a.png,disc,train", ("another split", "images/06.png is of test")),
        ("data:images/02.png,gone.png,disc,train", ("gone.png: there is no such file",)),
    ],
)
def test_a_pair_that_is_not_what_it_says_is_named_and_nothing_is_written(
    assert_refused, shapes: tuple[str, ...], row: str, says: tuple[str, ...]
) -> None:
    Path("own").mkdir()
    for name, line in (("good", "data:images/00.png,a.png,disc,train"), ("bad", row)):
        Path(f"own/{name}.csv").write_text(f"first,second,label,split\n{line}\n", encoding="utf-8")
    Image.new("RGB", (32, 32)).save("own/a.png")
    line = ("pairs", "merge", "own/good.csv", "own/bad.csv", "--data", "shapes/labels.csv", "--output", "both")
    assert_refused(*line, says=("own/bad.csv line 2", *says))
    assert not Path("both").exists()
