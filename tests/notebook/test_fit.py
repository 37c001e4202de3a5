"""Training in one call: names or objects of one's own, and what the caller keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stripes import SMALL, Net, net, repainted, stripes
from torch import Tensor, nn

import ipg
from ipg.config import ConfigError
from ipg.guidance import NonFiniteError
from ipg.notebook import Run, fit
from ipg.pairs.pairset import PairSet
from ipg.training.listeners import Listener

pytestmark = pytest.mark.usefixtures("one_thread")

# -- names --------------------------------------------------------------------------------------------------------


def test_names_alone(bars: dict[str, Any]) -> None:
    run = ipg.fit("mnist_cnn", "bars", 8, held_out_pairs=6, seed=3, **SMALL)
    assert isinstance(run, ipg.Run)
    assert (run.config.model, run.config.data, run.config.pairs, run.config.seed) == ("mnist_cnn", "bars", 8, 3)
    assert run.materials.named
    assert (len(run.materials.pairs), len(run.materials.held_out)) == (8, 6)
    assert [row["epoch"] for row in run.epochs] == [1, 2]
    assert run.result["config"]["method"] == "ipg"
    assert not run.model.training


def test_tensors_by_split_and_pairs_of_floats_train_as_tables_and_sets_do() -> None:
    table, held = stripes(), repainted(stripes(), "validation", 20)
    pairs = repainted(table, "train", 20)
    parts = {split: table.part(split) for split in table.splits}
    tensors = {split: (part.images.float() / 255, part.label, part.attribute) for split, part in parts.items()}
    floats = [ipg.Pairs(kept.first / 255, kept.second / 255, kept.label) for kept in (pairs, held)]
    runs = []
    for data, guide, measure in ((table, pairs, held), (tensors, *floats)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.ReLU(), nn.Linear(8, 3))
        runs.append(fit(network, data, guide, held_out=measure, device="cpu", **SMALL))
    first, second = (run.model.state_dict() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].result["metrics"]["worst_group"] == runs[1].result["metrics"]["worst_group"]
    assert runs[1].result["metrics"]["pair_disagreement"] is not None


def test_pairs_that_show_one_image_twice_are_told() -> None:
    table = stripes()
    pairs = repainted(table, "train", 20)
    second = pairs.second.clone()
    second[:3] = pairs.first[:3]
    network = nn.Sequential(nn.Flatten(), nn.Linear(108, 3))
    with pytest.warns(UserWarning, match="3 of 20 pairs show the same image twice and teach nothing") as told:
        fit(network, table, ipg.Pairs(pairs.first, second, pairs.label), device="cpu", **SMALL)
    assert told[0].filename == __file__


def test_without_arguments_it_is_guided_training_on_the_embedded_images(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stop(config, materials, **options) -> None:
        asked.append((config, materials, options))
        raise InterruptedError

    monkeypatch.setattr("ipg.notebook.train", stop)
    with pytest.raises(InterruptedError):
        fit()
    ((config, materials, options),) = asked
    assert (config.method, config.data, len(materials.pairs), len(materials.held_out)) == (
        "ipg", "colored_fashion", 40, 200,
    )  # fmt: skip
    assert options == {"folder": None, "listeners": ()}


def test_evaluate_gives_the_numbers_of_the_result(bars: dict[str, Any]) -> None:
    run = fit(**bars)
    assert run.evaluate() == run.result["metrics"]
    validation = run.evaluate("validation")
    assert {key: validation[key] for key in run.epochs[-1]["validation"]} == run.epochs[-1]["validation"]
    with pytest.raises(ValueError, match="has no split 'holiday'"):
        run.evaluate("holiday")


# -- objects of one's own -----------------------------------------------------------------------------------------


def test_predict_says_of_images_and_of_files_what_the_network_does(own: dict[str, Any], tmp_path: Path) -> None:
    run = fit(**own)
    images = run.materials.table.part("test").images[:7]
    logits = run.model(images.float() / 255).detach()
    said = run.predict(images, batch=3)
    assert [one.name for one in said] == [str(number) for number in range(7)]
    assert [one.predicted for one in said] == [("top", "middle", "bottom")[row] for row in logits.argmax(1).tolist()]
    torch.testing.assert_close(torch.tensor([one.probabilities for one in said]), logits.softmax(1))
    assert run.predict(images.numpy() / np.float32(255)) == run.predict(images)
    for number, image in enumerate(images[:2]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"")
    first, second, broken = run.predict(tmp_path)
    assert (first.name, broken.name, broken.error) == ("0.png", "broken.png", "it is empty")
    assert [first.predicted, second.predicted, broken.predicted] == [said[0].predicted, said[1].predicted, ""]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(3, 6, 6), r"images must be of shape \(N, C, H, W\), got \(3, 6, 6\)"),
        (torch.rand(2, 3, 8, 8), r"images are \(8, 8\), those of the training \(6, 6\): resize them, or give files"),
        (torch.rand(2, 1, 6, 6), "the network takes images of 3 channels; these have 1"),
        (torch.rand(2, 3, 6, 6) * 255, "images must be floats from 0 to 1"),
        ("nowhere", "there is nothing at nowhere"),
    ],
)
def test_predict_refuses_what_are_no_images(own: dict[str, Any], images: Any, message: str) -> None:
    run = fit(**own | {"epochs": 1})
    with pytest.raises(ValueError, match=message):
        run.predict(images)


def test_own_images_network_and_pairs(own: dict[str, Any]) -> None:
    held_out = repainted(own["data"], "validation", 30)
    guided = fit(**own | {"epochs": 25, "learning_rate": 1e-2}, held_out=held_out)
    plain = fit(**own | {"epochs": 25, "learning_rate": 1e-2, "model": net()}, held_out=held_out, method="erm")
    assert guided.model is own["model"]
    assert len(guided.result["metrics"]["groups"]) == 9
    assert set(guided.result["metrics"]["groups"]) == {
        f"{c}, {a}" for c in own["data"].classes for a in own["data"].attributes
    }
    assert guided.evaluate() == guided.result["metrics"]
    assert plain.result["metrics"]["pair_disagreement"] > 0.5  # colour is all it needs
    assert guided.result["metrics"]["pair_disagreement"] < 0.2
    assert guided.result["metrics"]["average"] > plain.result["metrics"]["average"] + 0.2
    assert plain.materials.pairs is None  # it has no use for them


def test_the_configuration_says_what_was_really_used(own: dict[str, Any]) -> None:
    run = fit(**own, held_out=repainted(own["data"], "validation", 30))
    config = run.result["config"]
    expected = {"data": "stripes", "model": "Net", "pairs": 24, "pair_builder": "repainted", "held_out_pairs": 30}
    assert {name: config[name] for name in expected} == expected
    assert not run.materials.named


def test_held_out_pairs_are_used_with_names_too(bars: dict[str, Any], make_table) -> None:
    table = make_table()
    rows = table.indices("validation")[:5]
    first = table.images[rows]
    held_out = PairSet(first, first.flip(1), table.label[rows], torch.stack([rows, rows], 1), "validation", "mine")
    run = fit(**bars, held_out=held_out)
    assert run.materials.held_out is not None
    assert torch.equal(run.materials.held_out.first, first)
    assert run.config.held_out_pairs == 5
    assert not run.materials.named


def test_held_out_pairs_for_own_images_come_only_where_asked_for(own: dict[str, Any], make_table) -> None:
    assert fit(**own).result["metrics"]["pair_disagreement"] is None
    run = fit(data=make_table(), pairs=8, held_out_pairs=4, **SMALL)
    assert len(run.materials.held_out) == 4
    assert fit(data=stripes(), method="erm", **SMALL).materials.held_out is None


def test_the_oracle_sees_own_pairs_without_colour(make_table) -> None:
    table = make_table()
    rows = table.indices("validation")[:5]
    first = table.images[rows]
    held_out = PairSet(first, first.flip(1), table.label[rows], torch.stack([rows, rows], 1), "validation", "mine")
    run = fit(data=table, held_out=held_out, method="oracle", **SMALL)
    assert run.materials.held_out.first.shape == (5, 1, 8, 8)
    assert run.result["metrics"]["pair_disagreement"] == 0


def test_an_own_network_with_data_by_name(bars: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 64, 8), nn.ReLU(), nn.Linear(8, 2))
    run = fit(model, **bars)
    assert run.model is model
    assert len(run.materials.pairs) == 8
    assert len(run.materials.held_out) == 8


def test_images_without_a_validation_split(own: dict[str, Any]) -> None:
    table = own["data"]
    table = replace(table, split=torch.where(table.split == 2, 1, 0), splits=("train", "test"))
    run = fit(**own | {"data": table})
    assert "validation" not in run.epochs[0]
    assert run.evaluate()["average"] == run.result["metrics"]["average"]


# -- what the caller keeps ----------------------------------------------------------------------------------------


def test_the_callers_generator_and_precision_stay_as_they_were(bars: dict[str, Any], own: dict[str, Any]) -> None:
    torch.manual_seed(12)
    expected = torch.rand(3)
    torch.manual_seed(12)
    before = torch.get_rng_state()
    fit(**bars)
    fit(**own)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.rand(3), expected)


def test_the_callers_generator_does_not_change_the_run(bars: dict[str, Any]) -> None:
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        weights.append(fit(**bars).model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_callers_defaults_do_not_change_the_run(bars: dict[str, Any], tmp_path: Path) -> None:
    """As in a notebook that says torch.set_default_device("cuda") in its first cell."""
    plain = fit(**bars, folder=tmp_path / "plain")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            run = fit(**bars)
            again = Run.load(tmp_path / "plain", device="cpu")
            assert run.evaluate() == again.evaluate() == plain.evaluate()
            run.report(tmp_path / "report.html")
            assert torch.empty(0).device.type == "meta"
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(*(torch.cat([p.flatten() for p in one.model.parameters()]) for one in (run, plain)))


def test_the_callers_network_holds_the_weights_on_the_runs_device(own: dict[str, Any]) -> None:
    before = [parameter.clone() for parameter in own["model"].parameters()]
    images, pairs = own["data"].images.clone(), own["pairs"].first.clone()
    run = fit(**own, device="cpu")
    assert all(parameter.device.type == "cpu" for parameter in own["model"].parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, own["model"].parameters(), strict=True))
    assert not any(module._forward_hooks for module in own["model"].modules())
    assert not own["model"].training
    assert run.model is own["model"]
    assert torch.equal(own["data"].images, images)
    assert torch.equal(own["pairs"].first, pairs)


def test_listeners_are_told(bars: dict[str, Any]) -> None:
    class Notes(Listener):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def epoch(self, row) -> None:
            self.epochs.append(row["epoch"])

    notes = Notes()
    fit(**bars, listeners=[notes])
    assert notes.epochs == [1, 2]


def test_a_network_of_ones_own_needs_no_name_for_photographs() -> None:
    small = stripes()
    table = replace(small, images=small.images.repeat_interleave(11, 2).repeat_interleave(11, 3))  # (n, 3, 66, 66)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(108, 3))
    run = fit(model, table, method="erm", **SMALL)
    assert run.model is not None
    assert run.config.model == "Sequential"


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": Net}, "model is a type; expected an nn.Module, or the name of a model"),
        ({"data": [1, 2]}, "data is a list; expected tensors by split, .*, the name of a data set, or a path"),
        ({"data": None}, "data is a NoneType; expected tensors by split"),
        (
            {"pairs": [1]},
            r"pairs is a list; expected ipg\.Pairs\(first, .*, their folder, or how many to build",
        ),
        ({"held_out": 8}, "held_out is a int; expected ipg.Pairs"),
        ({"model": "resnet"}, "there is no model 'resnet'"),
        ({"data": "cats"}, "unknown data set 'cats'"),
        ({"method": "erm2"}, "there is no method 'erm2'"),
        ({"model": net(classes=2)}, r"Net gives an image logits of shape \(2,\); stripes has 3 classes"),
        ({"model": net().requires_grad_(False)}, "Net has no parameter to train: every one is frozen"),
        ({"model": net(channels=1)}, r"Net does not take images of shape \(3, 6, 6\)"),
        ({"pairs": repainted(stripes(), "validation", 8)}, "pairs must come from the train split"),
        ({"held_out": repainted(stripes(), "train", 8)}, "held_out must come from the validation split"),
        (
            {"pairs": None},
            "cannot be made by swapping colours of images with 3 channels.* --data DATA ",
        ),
        ({"pairs": repainted(stripes(), "train", 8).map(lambda x: x / 255)}, "pairs must hold uint8 images"),
        ({"pairs": repainted(stripes(), "train", 8).map(lambda x: x[..., :4])}, "pairs hold images of shape"),
        ({"device": "tpu"}, "device='tpu': expected one of auto, cpu, cuda, mps"),
    ],
)
def test_mistakes_are_named(own: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(**own | changes)


def test_all_wrong_settings_at_once(own: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        fit(**own, epoch=3, alpha=2)
    assert len(caught.value.problems) == 2
    assert "unknown key 'epoch'; did you mean epochs?" in str(caught.value)


@pytest.mark.parametrize("method", ["erm", "ipg"])
def test_a_network_that_yields_nan_is_stopped(own: dict[str, Any], method: str, tmp_path: Path) -> None:
    class Broken(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images * (float("nan") if self.training else 1.0))

    with pytest.raises(NonFiniteError, match=r"NaN or infinite .* Likely causes: a NaN in the images"):
        fit(**own | {"model": Broken()}, method=method, folder=tmp_path)
    assert not (tmp_path / "done").exists()
    assert not (tmp_path / "checkpoint.safetensors").exists()  # nothing broken is kept
