"""Networks of timm: names, weights, normalisation."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from huggingface_hub.utils import LocalEntryNotFoundError
from torch import Tensor, nn

from ipg.models import NORMALIZATIONS, ImageModel, build_model, plain_state_dict, save_weights
from ipg.models.backbones import timm_model

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def make(name: str = "test_resnet", **options: Any) -> ImageModel:
    return timm_model(name, **{"channels": 3, "classes": 2, **options})


def test_without_weights_it_is_random_and_says_so() -> None:
    model = make()
    assert model.origin == "random weights"
    assert str(model.normalization) == "0.5,0.5,0.5/0.5,0.5,0.5"  # of the network's released weights
    assert make("mobilenetv2_035").normalization == NORMALIZATIONS["imagenet"]


def test_weights_of_a_file_with_a_new_head(make_weights: Callable[..., Path]) -> None:
    path = make_weights()
    held = torch.load(path)
    model = make(weights=str(path), normalization="imagenet")
    assert model.origin == "weights from test_resnet.pth"
    assert model.normalization == NORMALIZATIONS["imagenet"]
    for name, value in plain_state_dict(model).items():
        assert torch.equal(value, held[name]) != name.startswith("fc.")


def test_weights_of_torchvision_fit_where_names_agree(tmp_path: Path) -> None:
    held = torchvision.models.resnet18().state_dict()
    torch.save(held, tmp_path / "resnet18.pth")
    model = make("resnet18", weights=str(tmp_path / "resnet18.pth"), normalization="imagenet")
    assert torch.equal(model.backbone.layer1[0].conv1.weight, held["layer1.0.conv1.weight"])


def test_a_file_has_to_say_how_images_were_normalised(make_weights: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"^test_resnet.pth does not say how .* say it with --normalization .* half"):
        make(weights=str(make_weights()))


def test_statistics_of_the_file_hold_unless_others_are_given(tmp_path: Path) -> None:
    path = str(tmp_path / "own.safetensors")
    save_weights(path, make(normalization="0.1,0.2,0.3/0.4,0.5,0.6"))
    assert str(make(weights=path).normalization) == "0.1,0.2,0.3/0.4,0.5,0.6"
    assert make(weights=path, normalization="none").normalization == NORMALIZATIONS["none"]


def test_weights_of_another_network(make_weights: Callable[..., Path]) -> None:
    path = make_weights("test_vit")
    with pytest.raises(
        ValueError, match=r"test_vit.pth does not fit test_resnet: it lacks conv1.*another architecture"
    ):
        make(weights=str(path), normalization="half")


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channels(name: str, channels: int, make_weights: Callable[..., Path]) -> None:
    path = str(make_weights(name))
    model = make(name, channels=channels, weights=path, normalization="imagenet").eval()
    assert model.mean.shape == (1, channels, 1, 1)
    assert model(torch.rand(2, channels, 32, 32)).shape == (2, 2)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_grey_images_are_seen_as_before(name: str, make_weights: Callable[..., Path]) -> None:
    """With one channel the first layer sums what it did with three equal ones."""
    options: dict[str, Any] = {"weights": str(make_weights(name)), "normalization": "0.4/0.2"}
    images = torch.rand(2, 1, 32, 32)
    one, three = make(name, channels=1, **options).eval(), make(name, **options).eval()
    three.get_classifier().load_state_dict(one.get_classifier().state_dict())
    torch.testing.assert_close(one(images), three(images.expand(-1, 3, -1, -1)), atol=1e-5, rtol=1e-5)


def test_an_image_size_of_its_own(make_weights: Callable[..., Path]) -> None:
    path = make_weights("test_vit", img_size=64)  # 16 positions, not 100
    model = make("test_vit", weights=str(path), normalization="half")
    assert model(torch.rand(1, 3, 96, 96)).shape == (1, 2)


def test_the_layout_of_another_release_is_converted(make_weights: Callable[..., Path]) -> None:
    def released(state: dict[str, Tensor]) -> dict[str, Any]:
        """By the names of ConvNeXt's own release."""
        names = [
            (r"^stem\.", "downsample_layers.0."),
            (r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1."),
            (r"\.blocks\.", "."),
            ("conv_dw", "dwconv"),
            (r"mlp\.fc", "pwconv"),
            (r"^head\.norm\.", "norm."),
            (r"^head\.fc\.", "head."),
        ]
        return {"model": {reduce(lambda n, pair: re.sub(*pair, n), names, name): t for name, t in state.items()}}

    path = make_weights("test_convnext", change=released)
    held = torch.load(path)["model"]
    assert "stages.0.0.dwconv.weight" in held
    model = make("test_convnext", weights=str(path), normalization="half")
    assert torch.equal(model.backbone.stages[0].blocks[0].conv_dw.weight, held["stages.0.0.dwconv.weight"])
    assert torch.equal(model.backbone.head.norm.weight, held["norm.weight"])
    assert model.get_classifier().out_features == 2


def test_names_of_a_hub_and_folders(tmp_path: Path) -> None:
    timm.models.save_for_hf(timm.create_model("test_resnet", num_classes=5), tmp_path)
    held = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).state_dict()
    by_name, by_weights = make(f"local-dir:{tmp_path}"), make(weights=f"local-dir:{tmp_path}")
    for model in (by_name, by_weights):
        assert torch.equal(model.backbone.conv1[0].weight, held["conv1.0.weight"])
        assert model.get_classifier().out_features == 2
        assert str(model.normalization) == "0.5,0.5,0.5/0.5,0.5,0.5"
    with pytest.raises(ValueError, match="holds weights of test_resnet, not of test_vit"):
        make("test_vit", weights=f"local-dir:{tmp_path}")


def test_timms_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = timm.create_model, []

    def create(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        asked.append((name, pretrained))
        return real(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    model = make("test_resnet.r160_in1k", weights="pretrained")
    assert asked == [("test_resnet.r160_in1k", True)]
    assert model.origin == "weights test_resnet.r160_in1k"


@pytest.mark.parametrize("options", [{"weights": "pretrained"}, {"weights": "hf-hub:o/n"}, {"name": "hf-hub:o/n"}])
def test_without_a_network(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(log, "propagate", True)
    level = log.level

    def create(name: str, **options: Any) -> nn.Module:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise LocalEntryNotFoundError("An error happened while trying to locate the file.\nPlease check.")

    monkeypatch.setattr(timm, "create_model", create)
    says = r"cannot be fetched: the hub does not answer, and no copy .*; without a network, give weights as a file$"
    with pytest.raises(ValueError, match=says):
        make(**options)
    assert caplog.records == []
    assert log.level == level


def test_an_attempt_that_failed_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    real, reached = timm.create_model, [False, True]

    def create(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        made = real(name, **options)
        if len(reached) == 1:
            raise LocalEntryNotFoundError("no copy")
        return made

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr("ipg.models.hub._is_reached", lambda constants: reached.pop(0))
    monkeypatch.setattr("ipg.models.hub.WAITS", (0.0, 0.0))
    torch.manual_seed(3)
    found = make(weights="pretrained")
    assert reached == []
    monkeypatch.setattr("ipg.models.hub._is_reached", lambda constants: True)
    torch.manual_seed(3)
    assert all(map(torch.equal, found.state_dict().values(), make(weights="pretrained").state_dict().values()))


def test_weights_that_cannot_be_fetched_for_another_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(name: str, **options: Any) -> nn.Module:
        raise OSError("No space left on device.")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(ValueError, match=r"fetched: No space left on device; without a network, give weights"):
        make(weights="pretrained")


ASKED = """
import time
waits = []
time.sleep = waits.append
from ipg.cli import app
try:
    app(prog_name="ipg")
finally:
    print(sum(waits))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (("--model", "resnet18", "--weights", "pretrained"), "the weights of resnet18 cannot be fetched"),
        (("--model", "hf-hub:timm/resnet18.a1_in1k"), "the weights of hf-hub:timm/resnet18.a1_in1k cannot be fetched"),
        (("--from", "hf:microsoft/resnet-18"), "hf:microsoft/resnet-18 cannot be fetched"),
    ],
)
def test_without_a_network_a_command_soon_says_one_sentence(model: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """At an address where nobody answers; what it would wait is counted."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED, "train", "--method", "erm", *model, "--output", "run"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=300,
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub"), "COLUMNS": "80"},
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ipg: {says}: the hub does not answer")
    assert done.returncode == 2
    assert 0 < float(done.stdout) < 5


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "resnet5",
            "there is no model 'resnet5'; there are mnist_cnn, .*, linear and the names of timm, such as resnet50",
        ),
        ("mnist_cn", "did you mean mnist_cnn"),
        (
            "smal_cnn",
            r"there is no model 'smal_cnn'; did you mean small_cnn\? There are mnist_cnn, .* and the names of timm",
        ),
        ("xyzzy", "timm.list_models"),
        ("org/name", "there is no model 'org/name'"),
        ("resnet18.nope", r"timm cannot make 'resnet18.nope': Invalid pretrained tag \(nope\)"),
    ],
)
def test_unknown_names(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(name)


@pytest.mark.parametrize("name", ["dla46_c", "deit_tiny_distilled_patch16_224"])
def test_networks_without_one_linear_head(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"{name} cannot be used, since rationales need one linear head: no linear head"
    ):
        make(name)


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ValueError, match=r"model 'resnet18', none of mnist_cnn, small_cnn, .*, linear, needs timm.*\[images\]'"
    ):
        build_model("resnet18", channels=3, classes=2)
    assert build_model("small_cnn", channels=3, classes=2) is not None
