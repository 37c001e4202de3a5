"""Going on from a trained network, its head kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ipg
from ipg.config import TRAINED_CROP, TRAINED_FLIP, RunConfig
from ipg.data.load import DATASETS
from ipg.experiments.study import Trial
from ipg.experiments.trial import run_trial
from ipg.models import build_model, load_model, save_weights
from ipg.training import start
from ipg.training.folder import read_json
from ipg.training.loop import train
from ipg.training.materials import gather
from ipg.training.start import as_started, order_is_known

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {"epochs": 1, "batch": 64, "held_out_pairs": 8}


@pytest.fixture(autouse=True)
def _bars(make_table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A finished run."""
    ipg.fit(data="bars", method="erm", folder=tmp_path / "plain", **SETTINGS)
    return tmp_path / "plain"


def config(**settings) -> RunConfig:
    return RunConfig.from_mapping({"data": "bars", "pairs": 8, **SETTINGS, **settings})


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).state_dict()


def test_a_run_goes_on_with_the_very_weights_of_another(plain: Path) -> None:
    model = gather(config(start=str(plain))).model
    assert all(torch.equal(value, weights_of(plain)[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_study_may_name_a_run_that_lies_beside_the_data(plain: Path) -> None:
    model = gather(config(start=plain.name, data_path=str(plain.parent))).model
    assert all(torch.equal(value, weights_of(plain)[name]) for name, value in model.state_dict().items())


def test_images_have_the_size_that_the_run_had(plain: Path) -> None:
    assert as_started(config(start=str(plain))).size is None  # the data set's own, as the run had it
    record = plain / "config.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    found["config"]["size"] = 20
    record.write_text(json.dumps(found), encoding="utf-8")
    assert as_started(config(start=str(plain))).size == 20
    assert as_started(config(start=str(plain), size=14)).size == 14
    assert as_started(config(start="nothing/here")).size is None


def test_columns_are_called_as_the_run_on_the_same_table_calls_them(plain: Path) -> None:
    record = plain / "config.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    found["config"] |= {"data": "birds.csv", "path_column": "File Name", "attribute_column": "ground"}
    record.write_text(json.dumps(found), encoding="utf-8")
    taken = as_started(config(start=str(plain), data="birds.csv"))
    assert (taken.path_column, taken.label_column, taken.attribute_column) == ("File Name", "label", "ground")
    other = as_started(config(start=str(plain), data="birds.csv", attribute_column="sky"))
    assert (other.path_column, other.attribute_column) == ("path", "sky")
    assert as_started(config(start=str(plain), data="others.csv")).path_column == "path"


def test_a_network_that_is_not_there_is_told_before_the_data_are_read() -> None:
    with pytest.raises(ValueError, match="there is no model 'nowhere'"):
        gather(config(start="nowhere", data="no.csv"))


@pytest.mark.parametrize(
    ("of_the_run", "given", "expected"),
    [
        ({}, {}, 3e-3),  # a fresh network, of which 1e-4 would hardly move anything
        ({"learning_rate": 1e-3}, {}, 1e-3),
        ({"learning_rate": 3e-3, "weights": "net.safetensors"}, {}, 1e-4),  # which plain training may have borne
        ({"learning_rate": 3e-5, "weights": "net.safetensors"}, {}, 3e-5),
        ({"learning_rate": 0.1, "optimizer": "sgd"}, {}, 1e-4),  # Adam takes no such steps
        ({"learning_rate": 1e-3}, {"freeze": True}, 3e-3),
        ({"learning_rate": "fast"}, {}, 1e-4),
        ({"learning_rate": 1e-3}, {"learning_rate": 0.02}, 0.02),
    ],
)
def test_the_learning_rate_is_that_of_the_run(plain: Path, of_the_run: dict, given: dict, expected: float) -> None:
    record = plain / "config.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    found["config"] |= of_the_run
    record.write_text(json.dumps(found), encoding="utf-8")
    assert as_started(config(start=str(plain), **given)).suited().learning_rate == expected
    assert as_started(config(start="nothing/here")).suited().learning_rate == 1e-4


@pytest.mark.parametrize(
    ("of_the_run", "given", "expected"),
    [
        ({}, {}, (1.0, False)),  # a fresh network: what suits photographs would not suit its digits
        ({"crop": 0.9, "flip": True}, {}, (0.9, True)),
        ({"weights": "net.safetensors"}, {}, (TRAINED_CROP, TRAINED_FLIP)),
        ({"crop": 0.9}, {"crop": 0.5, "flip": True}, (0.5, True)),
        ({"crop": 0.9}, {"freeze": True}, (1.0, False)),
    ],
)
def test_views_are_those_of_a_run_whose_network_was_fresh(
    plain: Path, of_the_run: dict, given: dict, expected: tuple
) -> None:
    record = plain / "config.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    found["config"] |= of_the_run
    record.write_text(json.dumps(found), encoding="utf-8")

    def views(start: str) -> tuple:
        made = as_started(config(start=start, **given)).suited()
        return made.crop, made.flip

    assert views(str(plain)) == expected
    for name in ("crop", "flip"):
        del found["config"][name]
    record.write_text(json.dumps(found), encoding="utf-8")
    if not of_the_run:
        assert views(str(plain)) == expected  # of a version without such settings
    if not given:
        assert views("nothing/here") == (TRAINED_CROP, TRAINED_FLIP)


def test_the_learning_rate_is_that_which_the_run_ended_with(plain: Path) -> None:
    """And not that with which it collapsed, where it began again."""
    result = plain / "result.json"
    result.write_text(json.dumps(read_json(result) | {"restarted": 2}), encoding="utf-8")
    assert as_started(config(start=str(plain))).learning_rate == 3e-3 / 4


def test_results_tell_which_learning_rate_was_meant(plain: Path, tmp_path: Path) -> None:
    ipg.fit(data="bars", method="erm", start=str(plain), folder=tmp_path / "on", **SETTINGS)
    for folder in (plain, tmp_path / "on"):
        assert read_json(folder / "result.json")["config"]["learning_rate"] == 3e-3


def test_trials_have_the_size_and_the_network_of_the_run_that_they_go_on_from(plain: Path) -> None:
    record = plain / "config.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    found["config"]["size"] = 16
    record.write_text(json.dumps(found), encoding="utf-8")
    settings = config(start=str(plain), epochs=1)
    row = run_trial(Trial("mine", settings.data, settings.method, "mine", 0, settings))
    assert (row["config"]["size"], row["config"]["model"]) == (16, "small_cnn")


def test_a_run_that_knows_other_images_as_training_images_is_refused(plain: Path) -> None:
    with pytest.raises(ValueError, match=r"split_seed=0; with split_seed=1 it may be tested .* Give --split-seed 0$"):
        as_started(config(start=str(plain), split_seed=1))
    assert as_started(config(start=str(plain), seed=5)).split_seed == 0  # the run's own seed has no part in it
    assert as_started(config(start=str(plain), data="colored_fashion", split_seed=1)).split_seed == 1  # drawn otherwise


def test_files_of_weights_do_as_well(plain: Path, tmp_path: Path) -> None:
    save_weights(tmp_path / "named.safetensors", load_model(plain))
    torch.save(load_model(plain).state_dict(), tmp_path / "bare.pth")
    with pytest.raises(ValueError, match=r"which network it is of; name it, as in timm:\S+, or with --model, e\.g\."):
        gather(config(start=str(tmp_path / "bare.pth")))
    for settings in ({"start": "named.safetensors"}, {"start": "bare.pth", "model": "small_cnn"}):
        given = {**settings, "start": str(tmp_path / settings["start"])}
        found = gather(config(**given)).model.state_dict()
        assert all(torch.equal(value, found[name]) for name, value in weights_of(plain).items())


def test_a_repaired_run_is_read_back_without_what_it_started_from(plain: Path, tmp_path: Path) -> None:
    run = ipg.fit(data="bars", pairs=8, start=str(plain), folder=tmp_path / "repaired", **SETTINGS)
    assert run.result["config"]["start"] == str(plain)
    plain.rename(tmp_path / "gone")
    again = ipg.Run.load(tmp_path / "repaired", device="cpu")
    assert again.evaluate()["average"] == run.result["metrics"]["average"]
    assert again.config.start == str(plain)


def test_a_margin_relative_to_first_distances_is_measured_at_the_trained_network(plain: Path) -> None:
    fresh, trained = (
        train(c, gather(c), evaluate_on=()).rows[0]["train"]["margin"]
        for c in (config(margin="0.5x", device="cpu"), config(margin="0.5x", device="cpu", start=str(plain)))
    )
    assert trained != fresh


@pytest.fixture
def wide(make_table, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The same images in three channels and 32 pixels; the settings that train on them."""
    table = make_table()
    images = torch.nn.functional.interpolate(table.images[:, [0, 1, 1]].float(), size=32).to(torch.uint8)
    monkeypatch.setitem(DATASETS, "wide", lambda path, size, seed: replace(table, images=images))
    return {"data": "wide", "method": "erm", **SETTINGS, "held_out_pairs": 0}


def test_a_network_of_hugging_face(wide, tmp_path: Path) -> None:
    import transformers

    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 2}
    with torch.random.fork_rng():
        made = transformers.ResNetForImageClassification(transformers.ResNetConfig(**shape))
    made.save_pretrained(tmp_path / "hf")
    run = ipg.fit(start=f"hf:{tmp_path / 'hf'}", normalization="half", folder=tmp_path / "run", **wide)
    again = ipg.Run.load(tmp_path / "run", device="cpu").model.state_dict()
    assert all(torch.equal(value.cpu(), again[name]) for name, value in run.model.state_dict().items())


def test_a_network_of_timm_keeps_its_name_and_head(wide, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        made = build_model("test_resnet", channels=3, classes=2)
    save_weights(tmp_path / "net.safetensors", made)
    run = ipg.fit(start=str(tmp_path / "net.safetensors"), folder=tmp_path / "run", **wide)
    assert read_json(tmp_path / "run" / "config.json")["origin"]["network"] == "test_resnet"
    (tmp_path / "net.safetensors").unlink()
    again = ipg.Run.load(tmp_path / "run", device="cpu").model.state_dict()
    assert all(torch.equal(value.cpu(), again[name]) for name, value in run.model.state_dict().items())
    frozen = gather(RunConfig.from_mapping({**wide, "start": str(tmp_path / "run"), "freeze": True})).model
    assert {name for name, p in frozen.named_parameters() if p.requires_grad} == {
        "backbone.fc.weight",
        "backbone.fc.bias",
    }


def test_networks_of_ones_own_code_are_not_made_because_a_run_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))\n"
    )
    ipg.fit(data="bars", method="erm", start="python:own.py:make", folder="own", **SETTINGS)
    with pytest.raises(ValueError, match="made by your code"):
        ipg.Run.load("own")


def test_what_does_not_fit_is_said(plain: Path, make_table, tmp_path: Path, monkeypatch) -> None:
    start = str(plain)
    other = replace(make_table(), classes=("left", "right"))
    monkeypatch.setitem(DATASETS, "other", lambda path, size, seed: other)
    with pytest.raises(ValueError, match="tells top, bottom apart, the data left, right"):
        gather(config(start=start, data="other"))
    three = replace(make_table(), classes=("top", "bottom", "side"))
    monkeypatch.setitem(DATASETS, "three", lambda path, size, seed: three)
    save_weights(tmp_path / "two.safetensors", load_model(plain))
    with pytest.raises(ValueError, match="has 2 outputs and the data 3 classes"):
        gather(config(start=str(tmp_path / "two.safetensors"), data="three"))
    with pytest.raises(ValueError, match="brings its weights along"):
        gather(config(start=start, weights="a.pth"))
    with pytest.raises(ValueError, match="is a small_cnn, not a mnist_cnn: leave --model out"):
        gather(config(start=start, model="mnist_cnn"))
    with pytest.raises(ValueError, match="does not take images of 1x8x8"):
        gather(config(start=start, method="oracle"))
    with pytest.raises(ValueError, match="there is no model 'nowhere'"):
        gather(config(start="nowhere"))


class Named(torch.nn.Module):
    """A network that says what its outputs are, as those of Hugging Face do."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.head, self.classes = torch.nn.Linear(2 * 8 * 8, 2), classes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(images.flatten(1))
        return logits


def test_outputs_that_a_network_names_have_to_be_in_the_order_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the case; names of another kind say nothing of the order."""

    def known(*classes: str) -> bool:
        monkeypatch.setattr(start, "load_model", lambda name, normalization: Named(classes))
        materials = gather(config(start="python:mine:make"))
        return order_is_known("python:mine:make", materials.model, materials.table.classes)

    assert known("top", "bottom")
    assert known("Top", "BOTTOM")
    assert not known("LABEL_0", "LABEL_1")
    assert not known("bottom", "side")
    with pytest.raises(ValueError, match="tells bottom, top apart, the data top, bottom: the classes and their order"):
        known("bottom", "top")


def test_the_file_of_a_run_knows_what_the_run_knows(plain: Path) -> None:
    file = plain / "model.safetensors"
    model = gather(config(start=str(file), model="small_cnn")).model
    assert order_is_known(f"timm:resnet18@{file}", model, ("top", "bottom"))
    assert order_is_known(str(file), model, ("top", "bottom"))
    save_weights(plain.parent / "bare.safetensors", model)
    assert not order_is_known(str(plain.parent / "bare.safetensors"), model, ("top", "bottom"))
    record = json.loads((plain / "config.json").read_text())
    record["origin"]["classes"].reverse()
    (plain / "config.json").write_text(json.dumps(record))
    for settings in ({"start": str(plain)}, {"start": str(file), "model": "small_cnn"}):
        with pytest.raises(ValueError, match="tells bottom, top apart, the data top, bottom: the classes and their"):
            gather(config(**settings))
