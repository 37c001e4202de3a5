"""`ipg pairs`: build, show and audit; `merge` in `test_pairs_merge.py`."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.models import save_weights
from ipg.models.small import build_small
from ipg.pairs.rows import Manifest


def read(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_build_show_and_audit(ipg, shapes: tuple[str, ...]) -> None:
    done = ipg("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "8", "--output", "pairs")
    assert (done.code, done.err) == (0, "")
    assert done.out == "8 pairs are in pairs/manifest.csv; look at them with: ipg pairs show pairs\n"
    rows = read("pairs/manifest.csv")
    assert {row["label"] for row in rows} == {"disc", "square"}
    assert len(list(Path("pairs/images").iterdir())) == len(list(Path("pairs/masks").iterdir())) == 8
    held_out = ("--count", "4", "--split", "validation", "--traces", "both", "--output", "pairs")
    assert ipg("pairs", "build", "background", *shapes, "--masks", "masks", *held_out).code == 0
    assert [row["split"] for row in read("pairs/manifest.csv")] == ["train"] * 8 + ["validation"] * 4
    assert len(list(Path("pairs/images").iterdir())) == 16

    done = ipg("pairs", "audit", "pairs", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "12 of 12 pairs are accepted; nothing was written" in done.out
    assert {row["status"] for row in read("pairs/manifest.csv")} == {""}
    assert ipg("pairs", "audit", "pairs").out.endswith("12 of 12 pairs are accepted; written to pairs/manifest.csv\n")
    assert {row["status"] for row in read("pairs/manifest.csv")} == {"ok"}
    assert all(float(row["score"]) > 0.9 for row in read("pairs/manifest.csv"))

    done = ipg("pairs", "show", "pairs")
    assert (done.code, done.out) == (0, "12 of 12 pairs are in pairs/sheet.html\n")
    assert Path("pairs/sheet.html").read_text(encoding="utf-8").count("<article") == 12
    assert ipg("pairs", "show", "pairs/manifest.csv", "--count", "5", "--worst", "--output", "s.png").code == 0
    with Image.open("s.png") as sheet:
        assert sheet.format == "PNG"


def test_a_person_judges(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    build = ("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "6", "--output", "pairs")
    assert ipg(*build).code == 0
    done = ipg("pairs", "reject", "pairs", "2", "4", "5", "6", "--reason", "label changed, I think")
    assert (done.code, done.err) == (0, "")
    assert done.out == "rejected pairs 2 and 4 to 6; 2 of 6 pairs are left in pairs/manifest.csv\n"
    done = ipg("pairs", "accept", "pairs/manifest.csv", "4")
    assert done.out == "accepted pair 4; 3 of 6 pairs are left in pairs/manifest.csv\n"
    assert ipg("pairs", "audit", "pairs").code == 0
    told = [(row["status"], row["reason"]) for row in read("pairs/manifest.csv")]
    no = ("rejected", "by eye: label changed, I think")
    assert told == [("ok", ""), no, ("ok", ""), ("ok", "by eye"), no, no]
    before = Path("pairs/manifest.csv").read_bytes()
    assert_refused("pairs", "reject", "pairs", "1", "7", says=("there is no pair 7", "has 6 pairs"))
    assert Path("pairs/manifest.csv").read_bytes() == before


def test_a_table_that_has_moved_is_found_in_the_folder_it_is_in_now(ipg, assert_refused, shapes) -> None:
    assert ipg("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output", "p").code == 0
    Path("shapes").rename("elsewhere")
    there = "the pairs are of " + str(Path("shapes/labels.csv").absolute()) + ", which is not there; say where with"
    assert_refused("pairs", "show", "p", says=(there,))
    assert_refused("pairs", "show", "p", "--data-path", ".", says=(there,))
    for line in (("show", "p"), ("audit", "p"), ("audit", "p", "--data", "elsewhere/labels.csv")):
        assert ipg("pairs", *line, *(("--data-path", "elsewhere") if len(line) == 2 else ())).code == 0
    assert "not compared" not in ipg("pairs", "audit", "p", "--data-path", "elsewhere").out


def test_the_folder_says_which_data_it_is_of(ipg, assert_refused, shapes: tuple[str, ...], tmp_path: Path) -> None:
    assert ipg("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output", "p").code == 0
    record = json.loads(Path("p/build.json").read_text())["validation"]["settings"]
    assert (record["data"], record["size"], record["seed"]) == (str(tmp_path / "shapes/labels.csv"), 32, 0)
    assert len(list(Path("p").iterdir())) == 2  # all images exist already
    assert ipg("pairs", "audit", "p").code == 0
    Path("p/build.json").unlink()
    assert "Splits and labels were not compared with a data set" in ipg("pairs", "audit", "p", "--dry-run").out
    assert ipg("pairs", "audit", "p", "--data", "shapes/labels.csv").code == 0


def test_columns_of_the_data_may_be_called_otherwise(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    """Of pairs by hand, whose folder does not say so."""
    assert ipg("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output", "p").code == 0
    Path("p/build.json").unlink()
    table = Path("shapes/labels.csv")
    names, rest = table.read_text().split("\n", 1)
    renamed = names.replace("path", "file").replace("label", "kind")
    assert renamed != names
    table.write_text(f"{renamed}\n{rest}")
    own = ("--path-column", "file", "--label-column", "kind")
    for verb, more in (("audit", ()), ("show", ()), ("merge", ("p", "--output", "merged"))):
        command = ("pairs", verb, "p", *more, "--data", "shapes/labels.csv")
        assert_refused(*command, says=("is it --path-column file --label-column kind?",))
        done = ipg(*command, *own)
        assert (done.code, done.err) == (0, "")
    assert json.loads(Path("merged/build.json").read_text())["validation"]["settings"]["label_column"] == "kind"
    assert ipg("pairs", "audit", "merged").code == 0  # which says it by itself


def test_the_audit_compares_images_at_the_size_that_is_given(
    ipg, assert_refused, shapes: tuple[str, ...], monkeypatch
) -> None:
    from ipg.pairs.references import References

    sides: list[int] = []
    read = References.image

    def noting(references: References, name: str) -> torch.Tensor:
        sides.append(read(references, name).shape[-1])
        return read(references, name)

    monkeypatch.setattr(References, "image", noting)
    assert ipg("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output", "p").code == 0
    for given, expected in (((), 32), (("--size", "20"), 20), (("--data", "shapes/labels.csv", "--size", "24"), 24)):
        sides.clear()
        assert ipg("pairs", "audit", "p", "--dry-run", *given).code in (0, 1)
        assert set(sides) == {expected}
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 40), "red" if name == "a.png" else "blue").save(name)
    Path("own.csv").write_text("first,second,label,split\na.png,b.png,disc,train\n", encoding="utf-8")
    for given, expected in (((), 224), (("--size", "20"), 20)):  # no data set is known
        sides.clear()
        assert ipg("pairs", "audit", "own.csv", "--dry-run", *given).code in (0, 1)
        assert set(sides) == {expected}


def test_an_audit_that_leaves_nothing(ipg, shapes: tuple[str, ...]) -> None:
    ipg("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "4", "--output", "pairs")
    lines = ["image,label"]
    for number, row in enumerate(read("pairs/manifest.csv")):
        lines += [f"{row['first']},disc", f"{row['second']},{'square' if number else 'disc'}"]
    Path("p.csv").write_text("\n".join(lines))
    done = ipg("pairs", "audit", "pairs", "--predictions", "p.csv", "--dry-run")
    assert done.code == 0
    assert "label changed │     3 │" in done.out
    assert "it may lean on the shortcut itself" in done.out
    done = ipg("pairs", "audit", "pairs", "--changed", "2", "--json")
    told = json.loads(done.out)
    assert done.code == 1
    assert (told["pairs"], told["ok"], told["rejected"]) == (4, 0, {"shortcut not changed": 4})
    assert {row["reason"].split(":")[0] for row in read("pairs/manifest.csv")} == {"shortcut not changed"}
    done = ipg("pairs", "audit", "pairs", "--changed", "2")
    assert done.out.endswith("see the others, and why, with: ipg pairs show pairs/manifest.csv\n")


def test_a_network_may_be_asked(ipg, embedded_runs: Path) -> None:
    ipg("pairs", "build", "recolored", "--data", "colored_fashion", "--count", "20", "--output", "pairs")
    done = ipg("pairs", "audit", "pairs", "--model", embedded_runs / "plain", "--device", "cpu")
    assert done.code in (0, 1)
    assert "label changed" in done.out  # plain training leans on the colour
    assert "features" in read("pairs/manifest.csv")[0]
    assert "pixelated" in (ipg("pairs", "show", "pairs"), Path("pairs/sheet.html").read_text(encoding="utf-8"))[1]


@pytest.mark.parametrize("method", ["erm", "oracle"])
def test_a_run_on_other_images_may_be_asked(
    ipg, shapes: tuple[str, ...], tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Of two channels or of one, at another size, and without its data: as `ipg predict` and `ipg evaluate` see it."""
    assert ipg("train", *tiny, "--method", method, "--output", "run").code == 0  # on images of 2 channels, 14 x 14
    ipg("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "4", "--output", "pairs")
    from ipg.evaluation import groups

    took: set[tuple[int, ...]] = set()
    predict = groups.predict

    def spy(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        took.add(images.shape[1:])
        return predict(model, images)

    monkeypatch.setattr(groups, "predict", spy)
    monkeypatch.setattr("ipg.notebook.Run.load", None)  # which reads the data of the run
    done = ipg("pairs", "audit", "pairs", "--model", "run", "--device", "cpu", "--json")
    assert (done.code in (0, 1), done.err, json.loads(done.out)["pairs"]) == (True, "", 4), done
    assert took == {(1 if method == "oracle" else 2, 14, 14)}


def test_a_run_of_ones_own_network_may_be_asked(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    Path("mine.py").write_text(OWN_MODELS)
    ipg("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "4", "--output", "pairs")
    start = ("--from", "python:mine.py:by_ground", "--method", "erm", "--epochs", "1", "--learning-rate", "1e-6")
    assert ipg("train", *shapes, *start, "--output", "run").code == 0
    line = ("pairs", "audit", "pairs", "--device", "cpu", "--json")
    assert_refused(*line, "--model", "run", says=("made by your code", "add --network python:mine.py:by_ground"))
    done = ipg(*line, "--model", "run", "--network", "python:mine.py:by_ground")
    assert (done.code, json.loads(done.out)["rejected"]) == (1, {"label changed": 4})
    network = ("--network", "python:mine.py:by_ground")
    assert_refused(*line, *network, says=("--network makes the network of a run; name the run with --model",))
    assert_refused(*line, *network, "--model", "python:mine.py:by_ground", says=("leave python:mine.py:by_ground out",))


def test_any_trained_network_may_be_asked(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    Path("mine.py").write_text(OWN_MODELS)
    ipg("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "4", "--output", "pairs")
    done = ipg("pairs", "audit", "pairs", "--model", "python:mine.py:by_ground", "--device", "cpu", "--json")
    told = json.loads(done.out)
    assert (done.code, told["rejected"]) == (1, {"label changed": 4})  # it goes by the ground
    assert "features_inside" in read("pairs/manifest.csv")[0]
    assert ipg("pairs", "audit", "pairs", "--model", "python:mine.py:by_nothing", "--device", "cpu").code == 0
    assert "features_inside" not in read("pairs/manifest.csv")[0]  # it has no head
    line = ("pairs", "audit", "pairs", "--model")
    assert_refused(*line, "python:mine.py:of_three", says=("tells 3 classes apart, the data has 2",))
    assert_refused(*line, "nothing", says=("there is no model 'nothing'", "timm:…"))
    says = ("--normalization is for --model, which is missing",)
    assert_refused("pairs", "audit", "pairs", "--normalization", "half", says=says)


OWN_MODELS = """
from torch import nn, tensor, zeros


def by_ground():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2, bias=False))
    model[2].weight.data = tensor([[0.0, 1, 0], [0, 0, 1]])
    return model


def of_three():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))


class by_nothing(nn.Module):
    def forward(self, images):
        return zeros(len(images), 2)
"""
"""Networks of somebody's own: by what is green or blue, of too many classes, and without a head."""


def test_what_ipg_predict_wrote_may_be_asked(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    masks = ("--masks", "masks", "--count", "4")
    assert ipg("pairs", "build", "background", *shapes, *masks, "--traces", "both", "--output", "both").code == 0
    assert ipg("pairs", "build", "background", *shapes, *masks, "--output", "pairs").code == 0
    line = ("--method", "erm", "--model", "small_cnn", "--epochs", "1", "--output", "run")
    assert ipg("train", *shapes, *line).code == 0
    for folder in ("both", "pairs"):
        assert ipg("predict", "run", f"{folder}/images", "--output", f"{folder}.csv").code == 0
    assert ipg("predict", "run", "both", "--output", "whole.csv").code == 0  # relative to the manifest, and masks
    changed = {row["path"]: row["predicted"] for row in read("both.csv")}
    expected = sum(
        changed[Path(row["first"]).name] != changed[Path(row["second"]).name] for row in read("both/manifest.csv")
    )
    for name in ("both.csv", "whole.csv"):
        told = json.loads(ipg("pairs", "audit", "both", "--predictions", name, "--dry-run", "--json").out)
        assert told["predictions"] == {"members": 8, "covered": 8, "pairs": 4}
        assert (told["ok"], told["rejected"].get("label changed", 0)) == (4 - expected, expected)
    out = " ".join(ipg("pairs", "audit", "both", "--predictions", "both.csv", "--dry-run").out.split())
    assert (
        "Predictions cover 8 of 8 members; 4 of 4 pairs are judged by them; their names are taken as in both/images"
        in out
    )
    lines = [line.replace(",disc,", ",square,") for line in Path("both.csv").read_text().splitlines()]
    Path("other.csv").write_text("\n".join(line.replace(",square,", ",disc,", "first" in line) for line in lines))
    assert json.loads(ipg("pairs", "audit", "both", "--predictions", "other.csv", "--json").out)["rejected"] == {
        "label changed": 4
    }

    audit = ("pairs", "audit", "pairs", "--dry-run", "--predictions", "pairs.csv")
    says = ("predictions cover 4 of 8 members, but both members of no pair", "'data:images/", "--predictions OTHERS")
    assert_refused(*audit, says=says)
    assert ipg("predict", "run", "shapes/labels.csv", "--output", "photos.csv").code == 0
    told = json.loads(ipg(*audit, "--predictions", "photos.csv", "--json").out)
    assert told["predictions"] == {"members": 8, "covered": 8, "pairs": 4}
    Path("none.csv").write_text("image,label\nx.png,disc\n")
    says = ("none.csv: it says nothing of any member of pairs/manifest.csv", "It names 'x.png', the manifest 'data:")
    assert_refused("pairs", "audit", "pairs", "--predictions", "none.csv", says=says)
    assert {row["status"] for row in read("pairs/manifest.csv")} == {""}


def test_counterparts_and_matches(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    names = [row["path"] for row in read("shapes/labels.csv") if row["split"] == "train"][:4]
    Path("counterparts").mkdir()
    for number, name in enumerate(names):
        Image.new("RGB", (32, 32), (number, 90, 200)).save(f"counterparts/{Path(name).name}")
    Path("mine.csv").write_text("\n".join(["image,counterpart", *(f"{name},{Path(name).name}" for name in names)]))
    done = ipg("pairs", "build", "counterparts", *shapes, "--table", "mine.csv", "--output", "a")
    assert done.code == 0, done
    assert len(read("a/manifest.csv")) == 4
    options = ("--split", "validation", "--count", "2")
    assert ipg("pairs", "build", "matched", *shapes, *options, "--output", "b").code == 0
    np.save("f.npy", np.random.default_rng(0).normal(size=(36, 4)))
    attributes = ["image,Round", *(f"images/{n:02d}.png,{n % 3 % 2}" for n in range(36))]
    Path("attributes.csv").write_text("\n".join(attributes))
    both = ("--features", "f.npy", "--attributes", "attributes.csv", "--attribute-weight", "2")
    matched = ("pairs", "build", "matched", *shapes, *options)
    assert ipg(*matched, *both, "--output", "c").code == 0
    assert ipg(*matched, *both[:-2], "--weight", "2", "--output", "c").code == 0  # by its other name, the same pairs
    assert_refused(*matched, *both[:-2], "--weight", "3", "--output", "c", says=("weight",))
    weighed = ("pairs", "build", "random", *shapes, *options, *both[-2:], "--output", "x")
    assert_refused(*weighed, says=("--attribute-weight is for matched pairs",))
    assert ipg("pairs", "build", "matched", *shapes, *options, *both[2:4], "--output", "d").code == 0
    torch.manual_seed(0)
    save_weights("w.safetensors", build_small("small_cnn", channels=3, classes=2))
    network = ("--network", "small_cnn", "--weights", "w.safetensors")
    assert ipg("pairs", "build", "matched", *shapes, *options, *network, *both[2:4], "--output", "e").code == 0
    for folder in "bcde":
        assert [row["builder"] for row in read(f"{folder}/manifest.csv")] == ["matched", "matched"]


@pytest.mark.parametrize("builder", ["matched", "random"])
def test_attributes_of_more_than_two_values(ipg, shapes: tuple[str, ...], builder: str) -> None:
    places = ("green", "blue", "red")
    rows = read("shapes/labels.csv")
    for number, row in enumerate(rows):
        row["attribute"] = places[number // 2 % 3]
    table = "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)])
    Path("shapes/labels.csv").write_text(table)
    done = ipg("pairs", "build", builder, *shapes, "--count", "6", "--output", "pairs")
    assert done.code == 0, done
    by_path = {f"data:{row['path']}": row for row in rows}
    met = []
    for pair in read("pairs/manifest.csv"):
        first, second = by_path[pair["first"]], by_path[pair["second"]]
        assert first["label"] == second["label"] == pair["label"]
        met.append({first["attribute"], second["attribute"]})
    assert sorted(map(sorted, met)) == sorted(2 * [["blue", "green"], ["blue", "red"], ["green", "red"]])
    done = ipg("train", *shapes, "--pairs", "pairs", "--method", "ipg", "--epochs", 1, "--model", "small_cnn")
    assert done.code == 0, done


def test_the_same_command_goes_on_and_another_is_refused(ipg, assert_refused, shapes: tuple[str, ...]) -> None:
    command = ("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "4", "--output", "pairs")
    assert ipg(*command).code == 0
    before = Path("pairs/manifest.csv").read_bytes()
    Path(f"pairs/{Manifest.read('pairs').pairs[1].second}").unlink()
    assert ipg(*command).code == 0
    assert Path("pairs/manifest.csv").read_bytes() == before
    assert len(list(Path("pairs/images").iterdir())) == 4
    assert_refused(*command, "--seed", "3", says=("made otherwise (seed 0, now 3)", "name another --output"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("background", "--count", "4"), ("background pairs need --masks",)),
        (("background", "--masks", "masks"), ("say how many pairs with --count",)),
        (("counterparts",), ("counterparts pairs need --table",)),
        (("random", "--count", "4", "--masks", "m", "--keep", "x"), ("--masks is for background", "--keep is for")),
        (("random", "--count", "4", "--split", "test"), ("pairs are made of train or validation images alone",)),
        (("edited", "--count", "4"), ("counted with --per-group and --candidates",)),
        (("edited",), ("not about blond hair and gender" if find_spec("diffusers") else "need the extra edit",)),
        (("recolored", "--count", "4"), ("recoloured pairs swap two channels", "by masks (background)")),
        (("foo",), ("Invalid value for 'BUILDER': 'foo' is not one of 'counterparts', ",)),
        (
            ("random", "--count", "400"),
            (
                "only 0 can be made",
                "no label of labels has train images of two attributes",
                "background",
                "counterparts",
            ),
        ),
        (("matched", "--count", "4"), ("matched pairs are", "no label of labels has train images of two attributes")),
        (("background", "--count", "4", "--masks", "none"), ("there is no none, which --masks names",)),
        (("background", "--count", "4", "--masks", "shapes"), ("no mask for images/",)),
        (("background", "--count", "4", "--masks", "masks", "--keep", "bird"), ("keep='bird' is unknown",)),
        (("matched", "--count", "2", "--features", "none.npy"), ("there is no none.npy, which --features names",)),
        (("matched", "--count", "2", "--network", "small_cnn"), ("--network and --weights go together",)),
        (
            ("matched", "--count", "2", "--features", "f.npy", "--network", "small_cnn", "--weights", "w"),
            ("--features and --network are two ways to the same",),
        ),
        (("counterparts", "--table", "none.csv"), ("there is no none.csv, which --table names",)),
        (("invented", "--count", "2"), ("invented",)),
    ],
)
def test_what_cannot_be_built(
    assert_refused, shapes: tuple[str, ...], arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    for path in Path("masks/images").glob("0*.png"):
        if arguments[-1] == "shapes":
            path.unlink()
    if arguments[-1] == "shapes":
        Path("shapes/empty").mkdir()
        arguments = (*arguments[:-1], "shapes/empty")
    assert_refused("pairs", "build", *arguments, *shapes, "--output", "out", says=says)
    assert not Path("out").exists()


def test_missing_files_are_told_together_before_images_are_decoded(
    assert_refused, shapes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> None:
        raise ValueError("images are being decoded")

    monkeypatch.setattr("ipg.cli.pairs_data.load_data", decode)
    command = ("pairs", "build", "matched", *shapes, "--count", "2", "--output", "out")
    given = ("--features", "none.npy", "--attributes", "none.csv")
    says = ("there is no none.npy, which --features names", "there is no none.csv, which --attributes names")
    assert_refused(*command, *given, says=says)
    network = ("--network", "small_cnn", "--weights", "none.safetensors")
    assert_refused(*command, *network, says=("there is no file none.safetensors with weights",))
    assert_refused(*command, "--network", "smal_cnn", *network[2:], says=("smal_cnn", "small_cnn"))
    hub = ("--network", "resnet18", "--weights", "hf_hub:somebody/resnet18")
    assert_refused(*command, *hub, says=("images are being decoded",))


def test_builders_that_need_files(assert_refused) -> None:
    options = ("--data", "colored_fashion", "--count", "4", "--output", "out")
    Path("m").mkdir()
    assert_refused(
        "pairs", "build", "background", *options, "--masks", "m", says=("are of image files", "use recolored pairs")
    )


def test_manifests_that_are_none(assert_refused, ipg, shapes: tuple[str, ...]) -> None:
    assert_refused("pairs", "show", "nowhere.csv", says=("there are no pairs at nowhere.csv",))
    Path("empty").mkdir()
    assert_refused("pairs", "audit", "empty", says=("has no manifest.csv", "`ipg pairs build` makes one"))
    Path("m.csv").write_text("first,second,label,split\n")
    assert_refused("pairs", "audit", "m.csv", says=("has no row below its first line",))
    Path("m.csv").write_text("first,second,label,split\na.png,b.png,0,test\na.png,,0,train\n")
    assert_refused("pairs", "audit", "m.csv", says=("line 2: split is 'test'", "line 3: no second"))
    Path("m.csv").write_text("first,second,label,split\n../a.png,none.png,0,train\n")
    done = ipg("pairs", "audit", "m.csv", "--data", "shapes/labels.csv")
    assert done.code == 1
    assert "is not inside" in read("m.csv")[0]["reason"]
    ipg("pairs", "build", "random", *shapes, "--split", "validation", "--count", "2", "--output", "p")
    assert_refused("pairs", "show", "p", "--output", "p/sheet.pdf", says=("is neither .html nor .png",))
    assert_refused("pairs", "audit", "p", "--model", "x", "--predictions", "y", says=("give one of them",))
    for text in ("{", "[" * 100_000):
        Path("p/build.json").write_text(text)
        assert_refused("pairs", "show", "p", says=("build.json cannot be read", "--data"))


def test_features_of_other_images(assert_refused, shapes: tuple[str, ...]) -> None:
    np.save("f.npy", np.zeros((5, 4)))
    Path("a.csv").write_text("\n".join(["image,Hat", *(f"images/{n:02d}.png,{n % 3 % 2}" for n in range(36))]))
    options = ("--count", "2", "--split", "validation", "--features", "f.npy", "--attributes", "a.csv")
    assert_refused("pairs", "build", "matched", *shapes, *options, "--output", "out", says=("features must be (N, D)",))


def test_who_interrupts_is_told_how_to_go_on(ipg, shapes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path, pixels: object) -> None:
        raise KeyboardInterrupt

    command = ("pairs", "build", "background", *shapes, "--masks", "masks", "--count", "4", "--output", "pairs")
    with monkeypatch.context() as patched:
        patched.setattr("ipg.pairs.plan._save", stop)
        done = ipg(*command)
    assert (done.code, done.err) == (130, "ipg: interrupted; run the same command again to go on\n")
    assert ipg(*command).code == 0
