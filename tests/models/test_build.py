"""The network to train, from names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ipg
from ipg.models import HEAD_STD, ImageModel, build_model, describe, save_weights
from ipg.rationale import find_head

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def test_our_own_networks_start_as_torch_starts_them() -> None:
    model = build_model("small_cnn", channels=2, classes=2)
    assert float(find_head(model).weight.detach().std()) > 3 * HEAD_STD  # uniform up to 1/√32


def test_a_network_of_timm_takes_images_in_the_unit_interval() -> None:
    model = build_model("test_resnet", channels=3, classes=5, size=32)
    assert isinstance(model, ImageModel)
    assert model.training
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize("name", ["test_vit", "mnist_cnn"])
def test_equal_seeds_give_equal_networks(name: str) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(build_model(name, channels=3, classes=2, size=32).state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert not all(torch.equal(value, states[2][key]) for key, value in states[0].items())


def test_weights_of_our_own_networks(tmp_path: Path) -> None:
    trained = build_model("small_cnn", channels=2, classes=3)
    save_weights(tmp_path / "net.safetensors", trained)
    model = build_model("small_cnn", channels=2, classes=2, weights=str(tmp_path / "net.safetensors"))
    assert torch.equal(model.state_dict()["body.0.weight"], trained.state_dict()["body.0.weight"])
    assert float(find_head(model).weight.detach().std()) < 2 * HEAD_STD
    with pytest.raises(ValueError, match=r"does not fit mnist_cnn: sizes differ in body.0.weight"):
        build_model("mnist_cnn", channels=2, classes=2, weights=str(tmp_path / "net.safetensors"))


def test_what_our_own_networks_do_not_have() -> None:
    with pytest.raises(ValueError, match="small_cnn takes images as they are; leave normalization='half' out"):
        build_model("small_cnn", channels=2, classes=2, normalization="half")
    with pytest.raises(ValueError, match="no pretrained weights of small_cnn"):
        build_model("small_cnn", channels=2, classes=2, weights="pretrained")


@pytest.mark.parametrize("name", ["test_resnet", "small_cnn"])
def test_freezing(name: str) -> None:
    model = build_model(name, channels=3, classes=2, freeze=True)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert [id(parameter) for parameter in learning] == [id(parameter) for parameter in find_head(model).parameters()]


def test_a_frozen_network_keeps_its_statistics() -> None:
    model = build_model("test_resnet", channels=3, classes=2, freeze=True, size=32).train()
    before = [buffer.clone() for buffer in model.buffers()]
    model(torch.rand(4, 3, 32, 32))
    assert all(torch.equal(old, new) for old, new in zip(before, model.buffers(), strict=True))
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_a_frozen_network_stays_so_through_a_guided_run(make_table: Callable[..., Any]) -> None:
    model = build_model("test_resnet", channels=2, classes=2, freeze=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ipg.fit(model, make_table(), 20, epochs=1, device="cpu")
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"backbone.fc.weight", "backbone.fc.bias"}


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("test_vit", 40, "test_vit does not take images of 3x40x40: .*divisible by patch size"),
        ("mixer_s16_224", 64, "mixer_s16_224 does not take images of 3x64x64: .*match model"),
    ],
)
def test_images_that_a_network_cannot_take(name: str, size: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_model(name, channels=3, classes=2, size=size)


def test_looking_at_one_image_changes_nothing() -> None:
    model = build_model("test_resnet", channels=3, classes=2, size=32)
    assert all(module.training for module in model.modules())
    assert not find_head(model)._forward_hooks
    assert all(int(buffer) == 0 for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked"))


def test_descriptions(make_weights: Callable[..., Path]) -> None:
    def built(name: str = "test_resnet", **options: object) -> str:
        return describe(build_model(name, channels=3, classes=2, **options))  # type: ignore[arg-type]

    assert built() == "test_resnet: 373 k parameters, 96 features, random weights, normalization half"
    path = str(make_weights())
    assert built(weights=path, normalization="0.1/0.2", freeze=True) == (
        "test_resnet: 373 k parameters, 96 features, weights from test_resnet.pth, "
        "normalization 0.1,0.1,0.1/0.2,0.2,0.2, backbone frozen"
    )
    assert built("mnist_cnn") == "ConvNet: 372 k parameters, 128 features"
    assert built("small_cnn") == "ConvNet: 24 k parameters, 32 features"
    assert built("resnet18").startswith("resnet18: 11.2 M parameters, 512 features")
    assert describe(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) == "Sequential: 10 parameters, 4 features"
