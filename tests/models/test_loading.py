"""Networks that are trained already."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from huggingface_hub.utils import LocalEntryNotFoundError
from torch import nn

import ipg
from ipg.models import NORMALIZATIONS, ImageModel, build_model, load_model, save_weights
from ipg.rationale import find_head
from ipg.training.checkpoint import save_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def assert_same(first: nn.Module, second: nn.Module, *, channels: int = 3, size: int = 32) -> None:
    images = torch.rand(2, channels, size, size)
    with torch.no_grad():
        torch.testing.assert_close(first.eval()(images), second.eval()(images))


# -- timm and torchvision ----------------------------------------------------------------------------------------------


def test_timm_with_its_head(make_weights: Callable[..., Path]) -> None:
    path = make_weights(num_classes=5)
    model = load_model(f"timm:test_resnet@{path}", classes=5, normalization="none")
    assert not model.training
    plain = timm.create_model("test_resnet", num_classes=5)
    plain.load_state_dict(torch.load(path))
    assert_same(model, plain)


def test_a_file_of_ours_needs_no_more_than_its_name(tmp_path: Path) -> None:
    trained = build_model("test_efficientnet", channels=2, classes=4, normalization="0.1,0.2/0.3,0.4")
    save_weights(tmp_path / "net.safetensors", trained)
    assert_same(load_model(tmp_path / "net.safetensors", classes=4), trained, channels=2)
    assert_same(load_model(f"timm:test_efficientnet@{tmp_path / 'net.safetensors'}"), trained, channels=2)


def test_weights_without_a_classifier(make_weights: Callable[..., Path]) -> None:
    path = make_weights(num_classes=0)
    with pytest.raises(ValueError, match=r"test_resnet.pth has no classifier \(fc.weight\)"):
        load_model(f"timm:test_resnet@{path}", normalization="half")


def test_timms_own_weights_are_taken_where_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = timm.create_model, []

    def create(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        asked.append((name, pretrained))
        return real("test_resnet", num_classes=7)

    monkeypatch.setattr(timm, "create_model", create)
    load_model("timm:test_resnet", classes=7)
    load_model("timm:hf-hub:org/name@revision", classes=7)
    assert asked == [("test_resnet", True), ("hf-hub:org/name@revision", True)]


def test_torchvision_from_a_file(tmp_path: Path) -> None:
    plain = torchvision.models.get_model("mobilenet_v3_small", num_classes=3)
    torch.save({"model": plain.state_dict()}, tmp_path / "net.pth")
    spec = f"torchvision:mobilenet_v3_small@{tmp_path / 'net.pth'}"
    model = load_model(spec, classes=3, normalization="none")
    assert_same(model, plain)
    save_weights(tmp_path / "again.safetensors", model)
    assert_same(load_model(tmp_path / "again.safetensors"), plain)
    with pytest.raises(ValueError, match="does not say how images were normalised"):
        load_model(spec)


def test_torchvisions_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = torchvision.models.get_model, []

    def get(name: str, *, weights: Any) -> nn.Module:
        asked.append(str(weights))
        made: nn.Module = real(name)
        return made

    monkeypatch.setattr(torchvision.models, "get_model", get)
    model = load_model("torchvision:resnet18@IMAGENET1K_V1", classes=1000)
    assert isinstance(model, ImageModel)
    assert model.normalization == NORMALIZATIONS["imagenet"]
    load_model("torchvision:resnet18")
    assert asked == ["ResNet18_Weights.IMAGENET1K_V1"] * 2


def test_torchvision_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(name: str, *, weights: Any) -> nn.Module:
        raise OSError("<urlopen error>")

    monkeypatch.setattr(torchvision.models, "get_model", get)
    with pytest.raises(ValueError, match=r"the weights of torchvision:resnet18 cannot be fetched.*name a file after @"):
        load_model("torchvision:resnet18")


def test_unknown_names_of_torchvision() -> None:
    with pytest.raises(ValueError, match="torchvision has no classifier 'resnet19'; near are resnet18"):
        load_model("torchvision:resnet19")
    with pytest.raises(ValueError, match="there is no file IMAGENET_V9"):
        load_model("torchvision:resnet18@IMAGENET_V9")


# -- Hugging Face ------------------------------------------------------------------------------------------------------


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def test_hugging_face(hugging_face: Path) -> None:
    described = {"image_processor_type": "ConvNextImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (hugging_face / "preprocessor_config.json").write_text(json.dumps(described), encoding="utf-8")
    model = load_model(f"hf:{hugging_face}", classes=3)
    assert isinstance(model, ImageModel)
    assert model.normalization == NORMALIZATIONS["half"]
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(images), model.backbone(images * 2 - 1).logits)
    assert find_head(model).out_features == 3


def test_hugging_face_says_what_it_calls_its_outputs(hugging_face: Path) -> None:
    record = json.loads((hugging_face / "config.json").read_text())
    record["id2label"] = {"2": "fox", "0": "dog", "1": "cat"}
    (hugging_face / "config.json").write_text(json.dumps(record))
    assert load_model(f"hf:{hugging_face}", normalization="imagenet").classes == ("dog", "cat", "fox")


def test_hugging_face_without_a_processor(hugging_face: Path) -> None:
    with pytest.raises(ValueError, match=r"hf:.* does not say how images were normalised"):
        load_model(f"hf:{hugging_face}")
    assert load_model(f"hf:{hugging_face}", normalization="imagenet") is not None


def test_hugging_face_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"hf:.*empty cannot be loaded"):
        load_model(f"hf:{tmp_path / 'empty'}")


@pytest.mark.parametrize("kept", [False, True])
def test_hugging_face_without_a_network(
    kept: bool, hugging_face: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every attempt that fails is logged by the hub's client, also where a copy is kept on this machine."""
    log = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(log, "propagate", True)
    level = log.level
    real = transformers.AutoModelForImageClassification.from_pretrained

    def fail(name: str, **options: Any) -> Any:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("We couldn't connect.\nCheck your connection.") from LocalEntryNotFoundError("An error happened.")

    def find(name: str, **options: Any) -> Any:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        return real(hugging_face, **options)

    monkeypatch.setattr(transformers.AutoModelForImageClassification, "from_pretrained", find if kept else fail)
    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", fail)
    says = (
        r"^hf:org/name does not say how images were normalised"
        if kept
        else r"^hf:org/name cannot be fetched: the hub does not answer, and no copy of it is on this machine; without "
        r"a network, name a folder as save_pretrained writes it$"
    )
    with pytest.raises(ValueError, match=says):
        load_model("hf:org/name")
    assert caplog.records == []
    assert log.level == level


@pytest.mark.parametrize("name", ["/no/such/missing", "./missing"])
def test_hugging_face_of_a_folder_that_is_not_there(name: str) -> None:
    says = r"^hf:.*missing cannot be loaded: there is no such folder, and an id on the hub reads organisation/name$"
    with pytest.raises(ValueError, match=says):
        load_model(f"hf:{name}")


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"hf:org/name needs transformers.*pip install transformers"):
        load_model("hf:org/name")


# -- code of the user's ------------------------------------------------------------------------------------------------

CODE = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))

ready = make()
wrong = dict
number = 3

def of_width(width, *more, depth=2, **others):
    return make()
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net_of_a_test.py").write_text(CODE, encoding="utf-8")
    return tmp_path / "own_net_of_a_test.py"


def test_code_by_module_and_by_file(code: Path) -> None:
    before = list(sys.path)
    for spec in ("own_net_of_a_test:make", f"{code}:make", f"{code}:ready", "own_net_of_a_test.py:make"):
        assert load_model(f"python:{spec}", classes=2)(torch.rand(5, 3, 2, 2)).shape == (5, 2)
    assert sys.path == before
    sys.modules.pop("own_net_of_a_test")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("own_net_of_a_test.py:nothing", "own_net_of_a_test.py has no 'nothing'"),
        ("own_net_of_a_test.py:wrong", "returned a dict; expected an nn.Module"),
        ("own_net_of_a_test", "names no function; expected python:package.module:function"),
        ("no_such_module:make", "python:no_such_module cannot be imported: No module named"),
        ("no_such_file.py:make", "python:no_such_file.py cannot be imported: there is no file no_such_file.py"),
        (
            "own_net_of_a_test.py:of_width",
            "needs width, and is called without arguments; name a function that needs none",
        ),
        (
            "own_net_of_a_test.py:number",
            "own_net_of_a_test.py:number is of type int; name a function that returns the network",
        ),
    ],
)
def test_code_that_makes_no_network(spec: str, says: str, code: Path) -> None:
    with pytest.raises(ValueError, match=says):
        load_model(f"python:{spec}")


def test_code_normalises_for_itself(code: Path) -> None:
    with pytest.raises(ValueError, match="normalise them in your model"):
        load_model(f"python:{code}:make", normalization="half")


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [None, "small_cnn", "mnist_cnn"])
def test_a_run_of_ours(model: str | None, tmp_path: Path, make_table: Callable[..., Any]) -> None:
    run = ipg.fit(model, make_table(), method="erm", epochs=1, device="cpu", folder=tmp_path / "run")
    assert_same(load_model(tmp_path / "run", classes=2), run.model, channels=2, size=8)


def test_a_run_of_a_network_of_timm(tmp_path: Path) -> None:
    trained = build_model("test_vit", channels=3, classes=2, normalization="imagenet")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"config": {"model": "test_vit"}}), encoding="utf-8")
    with pytest.raises(ValueError, match="is not finished"):
        load_model(run)
    save_checkpoint(run / "model.safetensors", trained.state_dict())
    loaded = load_model(run, classes=2)
    assert_same(loaded, trained)
    assert loaded.state_dict().keys() == trained.state_dict().keys()


def test_a_run_on_a_network_of_the_users(tmp_path: Path, make_table: Callable[..., Any]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(128, 2))
    ipg.fit(net, make_table(), method="erm", epochs=1, device="cpu", folder=tmp_path / "run")
    with pytest.raises(ValueError, match="run cannot be loaded: there is no model 'Sequential'"):
        load_model(tmp_path / "run")


def test_folders_and_files_of_something_else(tmp_path: Path, make_weights: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="is not the folder of a run"):
        load_model(tmp_path)
    with pytest.raises(
        ValueError, match=r"there is no model '.*none'; expected the folder of a run, a file, or timm:…"
    ):
        load_model(tmp_path / "none")
    with pytest.raises(ValueError, match=r"does not say which network it is of; name it, as in timm:resnet50@"):
        load_model(make_weights())
    weights = make_weights()
    (weights.parent / "config.json").touch()
    says = rf"does not say which network it is of; the run does that it lies in: name {re.escape(str(weights.parent))}$"
    with pytest.raises(ValueError, match=says):
        load_model(weights)
    (tmp_path / "net.pt2").touch()
    with pytest.raises(ValueError, match=r"net.pt2 is an exported program.*python:file.py:function"):
        load_model(tmp_path / "net.pt2")


def test_another_number_of_classes(make_weights: Callable[..., Path]) -> None:
    path = make_weights(num_classes=5)
    with pytest.raises(ValueError, match="tells 5 classes apart, the data has 2"):
        load_model(f"timm:test_resnet@{path}", classes=2, normalization="half")


def test_a_single_logit_tells_two_classes_apart(make_weights: Callable[..., Path]) -> None:
    path = make_weights(num_classes=1)
    assert load_model(f"timm:test_resnet@{path}", classes=2, normalization="half") is not None
