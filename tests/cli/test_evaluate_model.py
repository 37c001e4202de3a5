"""`ipg evaluate --model … --pairs … --data …`."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from ipg.cli.evaluate_model import print_measured
from ipg.evaluation.statistics import wilson


def share(hits: int, count: int) -> dict[str, float]:
    return {"share": hits / count, **wilson(hits, count)._asdict(), "count": count}


def test_a_model_that_goes_by_colour_is_found_out_before_anything_is_trained(ipg, photos: Path) -> None:
    spec = f"python:{photos / 'mine.py'}:by_color"
    done = ipg("evaluate", "--model", spec, "--pairs", photos / "pairs.csv", "--classes", "above,below", "--json")
    assert done.code == 0, done
    half, all_, none = share(6, 12), share(6, 6), share(0, 6)
    assert json.loads(done.out) == {
        spec: {
            "pairs": {
                "file": str(photos / "pairs.csv"),
                "count": 12,
                "splits": {"train": 8, "validation": 4},
                "disagreement": share(12, 12),
                "first_right": half,  # red says above
                "second_right": half,
                "predicted_classes": 2,
                "labels": {
                    "above": {"disagreement": all_, "first_right": all_, "second_right": none},
                    "below": {"disagreement": all_, "first_right": none, "second_right": all_},
                },
            }
        }
    }


def test_with_data_there_are_groups(ipg, photos: Path) -> None:
    spec = f"python:{photos / 'mine.py'}:by_color"
    done = ipg("evaluate", "--model", spec, "--data", photos / "photos.csv", "--json")
    (metrics,) = json.loads(done.out).values()
    assert metrics["data"]["average"] == share(12, 24)
    # classes and attributes are in alphabetical order, and red still says the first class
    assert metrics["data"]["groups"]["above, red"] == share(6, 6)
    assert metrics["data"]["groups"]["above, green"] == share(0, 6)
    assert metrics["data"]["worst_group"] == {"group": "above, green", **share(0, 6)}
    assert "pairs" not in metrics
    done = ipg("evaluate", "--model", spec, "--data", photos / "photos.csv", "--split", "train", "--json")
    assert json.loads(done.out)[spec]["data"]["average"] == share(40, 40)


def test_outputs_in_another_order_than_the_classes_of_the_data(ipg, assert_refused, photos: Path) -> None:
    pairs, data = photos / "pairs.csv", photos / "photos.csv"
    for spec in (f"python:{photos / 'mine.py'}:by_color", f"python:{photos / 'mine.py'}:by_one_logit"):
        asked = ("evaluate", "--model", spec, "--pairs", pairs, "--data", data, "--json")
        as_is = ipg(*asked)
        assert f"{spec}: outputs taken as 0 = above, 1 = below; say --classes if they are otherwise" in as_is.err
        named, swapped = ipg(*asked, "--classes", "above,below"), ipg(*asked, "--classes", "below,above")
        assert "outputs taken as" not in named.err + swapped.err
        assert json.loads(named.out) == json.loads(as_is.out)
        (metrics,) = json.loads(swapped.out).values()
        assert metrics["data"]["groups"]["above, red"] == share(0, 6)  # red says below
        assert metrics["data"]["groups"]["above, green"] == share(6, 6)
        assert metrics["pairs"]["labels"]["above"]["first_right"] == share(0, 6)
        assert metrics["pairs"]["labels"]["above"]["second_right"] == share(6, 6)
    assert_refused(
        *asked,
        *("--classes", "beyond,below,above"),
        says=("photos are above, below; 'beyond' is none of them: name these, in the order of the model's outputs",),
    )
    assert_refused(*asked, "--classes", "a,above", says=("'a' is none of them and 'below' is missing",))
    run = ("evaluate", photos / "plain", "--data", data, "--json")
    assert ipg(*run).out == ipg(*run, "--classes", "below,above").out  # which is of models: a run knows its own


def test_columns_of_other_names(ipg, assert_refused, photos: Path, tmp_path: Path) -> None:
    rows = (photos / "photos.csv").read_text().replace("path,label,attribute", "file,light,colour", 1)
    (tmp_path / "mine.csv").write_text(rows)
    asked = ("evaluate", photos / "plain", "--data", "mine.csv", "--data-path", photos, "--json")
    assert_refused(*asked, says=("--path-column", "--label-column"))
    names = ("--path-column", "file", "--label-column", "light", "--attribute-column", "colour")
    found, plain = ipg(*asked, *names), ipg("evaluate", photos / "plain", "--data", photos / "photos.csv", "--json")
    (mine,), (theirs,) = (json.loads(done.out).values() for done in (found, plain))
    assert mine["data"] == theirs["data"] | {"name": "mine"}
    pairs = ("evaluate", photos / "plain", "--pairs", photos / "pairs.csv")
    assert_refused(*pairs, "--path-column", "file", says=("--path-column is for --data",))


def test_the_table_for_people(ipg, photos: Path) -> None:
    spec = f"python:{photos / 'mine.py'}:by_color"
    done = ipg("evaluate", "--model", spec, "--pairs", photos / "pairs.csv", "--data", photos / "photos.csv")
    assert done.code == 0
    assert "8 of train and 4 of validation" in " ".join(done.out.split())
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    assert ["disagree", "100.0", "75.8 to 100.0", "12"] in cells
    assert ["average", "50.0", "31.4 to 68.6", "24"] in cells
    assert "--split validation" in done.out


def test_a_model_that_gives_every_image_one_class_is_not_praised(ipg, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text(
        "from torch import nn\n\n\ndef make():\n    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))\n"
        "    nn.init.zeros_(model[1].weight)\n    return model\n"
    )
    flat = ("evaluate", "--model", "python:flat.py:make", "--size", 16)
    on_pairs = ("--pairs", photos / "pairs.csv")
    sentence = "python:flat.py:make gives every image the same class: its pairs agree because everything does."
    assert sentence in ipg(*flat, *on_pairs, "--classes", "above,below").out
    assert sentence in ipg(*flat, *on_pairs, "--data", photos / "photos.csv").out
    alone = ipg(*flat, "--data", photos / "photos.csv").out
    assert "python:flat.py:make gives every image the same class.\n" in alone  # no word of pairs
    measured = json.loads(ipg(*flat, *on_pairs, "--data", photos / "photos.csv", "--json").out)
    assert [part["predicted_classes"] for part in measured["python:flat.py:make"].values()] == [1, 1]
    by_color = f"python:{photos / 'mine.py'}:by_color"
    assert "same class" not in ipg("evaluate", "--model", by_color, "--size", 16, *on_pairs).out


def test_without_names_of_classes_who_is_right_is_not_known(ipg, photos: Path) -> None:
    spec = f"python:{photos / 'mine.py'}:of_three"
    done = ipg("evaluate", "--model", spec, "--pairs", photos / "pairs.csv")
    assert done.code == 0
    assert "Who is right is not known" in done.out
    assert "member right" not in done.out


def test_a_run_knows_its_classes_and_size_and_needs_no_data(ipg, photos: Path) -> None:
    for way in ((photos / "plain",), ("--model", photos / "plain")):
        done = ipg("evaluate", *way, "--pairs", photos / "pairs.csv", "--split", "validation", "--json")
        (metrics,) = json.loads(done.out).values()
        kept = json.loads((photos / "plain" / "result.json").read_text())["metrics"]
        assert metrics["pairs"]["splits"] == {"validation": 4}
        assert metrics["pairs"]["disagreement"]["share"] == kept["pair_disagreement"]
        assert metrics["pairs"]["first_right"]["count"] == 4


def test_a_run_on_its_own_data_has_the_figures_of_its_result(ipg, photos: Path) -> None:
    done = ipg("evaluate", photos / "plain", "--data", photos / "photos.csv", "--json")
    (metrics,) = json.loads(done.out).values()
    kept = json.loads((photos / "plain" / "result.json").read_text())["metrics"]
    assert metrics["data"]["average"]["share"] == kept["average"]
    assert metrics["data"]["worst_group"]["share"] == kept["worst_group"]


def test_rejected_pairs_are_not_counted(ipg, photos: Path, tmp_path: Path) -> None:
    lines = (photos / "pairs.csv").read_text().splitlines()
    rows = [f"{line},{'status' if not n else 'rejected' if n < 4 else 'ok'}" for n, line in enumerate(lines)]
    (tmp_path / "pairs").symlink_to(photos / "pairs")
    (tmp_path / "some.csv").write_text("\n".join(rows))
    done = ipg("evaluate", photos / "plain", "--pairs", "some.csv", "--json")
    assert json.loads(done.out)[str(photos / "plain")]["pairs"]["count"] == 9


def test_pairs_of_images_of_the_data(ipg, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(
        "first,second,label,split\ndata:images/train0.png,data:images/train2.png,above,train\n"
    )
    done = ipg("evaluate", photos / "plain", "--pairs", "data.csv", "--data", photos / "photos.csv", "--json")
    (metrics,) = json.loads(done.out).values()
    assert metrics["pairs"]["disagreement"] == share(0, 1)


def test_pairs_that_were_built_smaller_are_not_enlarged_in_silence(
    ipg, assert_refused, photos: Path, tmp_path: Path
) -> None:
    shutil.copytree(photos / "pairs", tmp_path / "small" / "pairs")
    shutil.copy(photos / "pairs.csv", tmp_path / "small")
    record = {split: {"settings": {"size": 16}} for split in ("train", "validation")}
    (tmp_path / "small" / "build.json").write_text(json.dumps(record))
    model = (
        "evaluate",
        "--model",
        f"python:{photos / 'mine.py'}:by_color",
        "--pairs",
        tmp_path / "small" / "pairs.csv",
    )
    assert_refused(*model, says=("the pairs are of images of 16 pixels, the network is to see 224", "take --size 16"))
    assert ipg(*model, "--size", 16).code == 0


def test_mistakes_are_said_in_a_sentence(assert_refused, photos: Path, tmp_path: Path) -> None:
    pairs, run, mine = photos / "pairs.csv", photos / "plain", f"python:{photos / 'mine.py'}"
    assert_refused("evaluate", says=("nothing to measure", "--model"))
    assert_refused("evaluate", "--model", f"{mine}:by_color", says=("--pairs", "--data"))
    assert_refused(
        "evaluate", "--model", f"{mine}:of_three", "--pairs", pairs, "--classes", "above,below", says=("3 classes",)
    )
    assert_refused(
        "evaluate", "--model", f"{mine}:of_three", "--data", photos / "photos.csv", says=("3 classes", "has 2")
    )
    assert_refused(
        "evaluate", "--model", f"{mine}:by_color", "--pairs", pairs, "--classes", "a,a", says=("all different",)
    )
    assert_refused(
        "evaluate", "--model", f"{mine}:by_color", "--pairs", pairs, "--classes", "a,b", says=("'above'", "a, b")
    )
    assert_refused(
        "evaluate", "--model", f"{mine}:small", "--pairs", pairs, says=("does not take images of 3x224x224",)
    )
    assert_refused("evaluate", "--model", f"{mine}:flat", "--pairs", pairs, says=("an output of shape (150528,)",))
    assert_refused(
        "evaluate", "--model", f"{mine}:headless", "--pairs", pairs, "--classes", "a,b", says=("has 3 outputs",)
    )
    assert_refused("evaluate", "--model", "nothing", "--pairs", pairs, says=("there is no model 'nothing'",))
    assert_refused("evaluate", run, "--pairs", "none.csv", says=("there are no pairs at none.csv",))
    assert_refused("evaluate", run, "--pairs", pairs, "--size", "32", says=("leave --size 32 out",))
    assert_refused("evaluate", run, "--pairs", pairs, "--classes", "below,above", says=("above, below apart",))
    assert_refused("evaluate", run, "--classes", "a,b", says=("--classes is for --pairs",))
    assert_refused("evaluate", run, "--pairs", pairs, "--device", "tpu", says=("there is no device 'tpu'",))
    assert_refused("evaluate", run, "--data", photos / "photos.csv", "--split", "nope", says=("no split 'nope'",))
    says = ("pairs are of train or validation", "did you mean validation?")
    assert_refused("evaluate", run, "--pairs", pairs, "--split", "valdation", says=says)
    assert_refused("evaluate", tmp_path, "--pairs", pairs, says=("not the folder of a run",))


def test_all_broken_pairs_are_named(assert_refused, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.csv").write_text("first,second,label,split\nno.png,neither.png,above,train\n")
    assert_refused(
        "evaluate", photos / "plain", "--pairs", "broken.csv", says=("line 2: no.png", "line 2: neither.png")
    )
    (tmp_path / "other.csv").write_text("first,second,label,split\ndata:a.png,data:b.png,above,train\n")
    assert_refused("evaluate", photos / "plain", "--pairs", "other.csv", says=("say which with --data",))
    (tmp_path / "gone.csv").write_text("first,second,label,split,status\na.png,b.png,above,train,rejected\n")
    assert_refused("evaluate", photos / "plain", "--pairs", "gone.csv", says=("no pair",))


@pytest.mark.parametrize("broken", ["model.safetensors", "result.json"])
def test_a_damaged_run_is_refused(assert_refused, finished: Path, photos: Path, broken: str) -> None:
    (finished / broken).write_bytes(b"junk")
    assert_refused("evaluate", finished, "--pairs", photos / "pairs.csv", says=(broken, "damaged"))


def test_without_an_attribute_the_worst_is_a_class() -> None:
    half = share(2, 4)
    data = {"name": "pets", "split": "test", "average": half, "worst_group": {"group": "cat, all", **half}}
    data |= {"predicted_classes": 2, "groups": {"cat, all": half, "dog, all": half}}
    console = Console(file=io.StringIO(), width=80)
    print_measured(console, "run", {"data": data})
    text = console.file.getvalue()
    assert "worst class: cat " in text
    assert ", all" not in text


@pytest.mark.parametrize("method", ["oracle", "shape_only"])
def test_a_run_of_a_method_that_sees_no_colour_is_shown_images_in_colour(ipg, bars, method: str) -> None:
    assert ipg("train", *bars, "--method", method, "--output", "run").code == 0
    (found,) = json.loads(ipg("evaluate", "run", "--data", "bars", "--json").out).values()
    kept = json.loads(Path("run/result.json").read_text())["metrics"]
    assert found["data"]["average"]["share"] == pytest.approx(kept["average"])
    done = ipg("export", "run", "--output", "out", "--format", "torch")
    assert done.code == 0, done
