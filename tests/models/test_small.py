"""Our own networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.models import MODELS, FirstConv2d, build_model, load_model, save_weights
from ipg.rationale import find_head

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def domainbed(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """MNIST_CNN as DomainBed describes it, written out; the weights by their order in the network."""
    convolutions = [name for name in state if state[name].ndim == 4]
    x = images
    for name, stride in zip(convolutions, (1, 2, 1, 1), strict=True):
        norm = f"body.{int(name.split('.')[1]) + 2}"
        x = F.conv2d(x, state[name], state[name.replace("weight", "bias")], stride=stride, padding=1)
        x = F.group_norm(F.relu(x), 8, state[f"{norm}.weight"], state[f"{norm}.bias"])
    return F.linear(x.flatten(2).mean(dim=2), state["head.weight"], state["head.bias"])


def test_mnist_cnn_is_domainbeds() -> None:
    model = build_model("mnist_cnn", channels=2, classes=2)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)  # scales and shifts that are not 1 and 0
    images = torch.rand(3, 2, 28, 28)
    torch.testing.assert_close(model(images), domainbed(dict(model.state_dict()), images), atol=1e-5, rtol=1e-5)


def test_layers_of_mnist_cnn() -> None:
    layers = list(build_model("mnist_cnn", channels=2, classes=2).modules())
    kinds = [type(layer) for layer in layers if not list(layer.children())]
    convolution = [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds == [FirstConv2d, *convolution[1:]] + convolution * 3 + [nn.Linear]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert [layer.stride for layer in convolutions] == [(1, 1), (2, 2), (1, 1), (1, 1)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 128, 128]
    assert {layer.num_groups for layer in layers if isinstance(layer, nn.GroupNorm)} == {8}


@pytest.mark.parametrize(
    ("name", "channels", "classes", "expected"),
    [
        # 2·64·9 + 64; 64·128·9 + 128; twice 128·128·9 + 128; GroupNorms 2·64 + 3·2·128; head 128·2 + 2
        ("mnist_cnn", 2, 2, 1_216 + 73_856 + 2 * 147_584 + 896 + 258),
        # one channel and ten classes: 64·9 fewer, 8·(128 + 1) more
        ("mnist_cnn", 1, 10, 1_216 + 73_856 + 2 * 147_584 + 896 + 258 - 576 + 1_032),
        # 2·16·9 + 16; 16·32·9 + 32; twice 32·32·9 + 32; GroupNorms 2·16 + 3·2·32; head 32·2 + 2
        ("small_cnn", 2, 2, 304 + 4_640 + 2 * 9_248 + 224 + 66),
        # patches 2·64·4 + 64; thrice attention 4·64·64 + 4·64, 2·64·128 + 128 + 64, norms 4·64; a norm; head 64·2 + 2
        ("small_vit", 2, 2, 576 + 3 * (16_640 + 16_576 + 256) + 128 + 130),
    ],
)
def test_number_of_parameters(name: str, channels: int, classes: int, expected: int) -> None:
    model = build_model(name, channels=channels, classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", [name for name in MODELS if name != "dair_cnn"])
@pytest.mark.parametrize("size", [8, 14, 28])
def test_logits_of_images_of_any_size(name: str, size: int) -> None:
    model = build_model(name, channels=2, classes=3, size=size)
    assert model(torch.rand(5, 2, size, size)).shape == (5, 3)
    assert find_head(model).out_features == 3


def test_a_network_for_one_size_says_so() -> None:
    assert build_model("dair_cnn", channels=3, classes=2, size=28)(torch.rand(5, 3, 28, 28)).shape == (5, 2)
    with pytest.raises(ValueError, match="dair_cnn takes images of 28x28, these have 14x14: leave --size out"):
        build_model("dair_cnn", channels=2, classes=2, size=14)


def test_irm_mlp_is_arjovskys() -> None:
    """Written out, with the bounds of Glorot's uniform distribution, sqrt(6 / (in + out)), filled and kept."""
    model = build_model("irm_mlp", channels=2, classes=2, size=14)
    state = model.state_dict()
    matrices = [value for value in state.values() if value.ndim == 2]
    assert [tuple(matrix.shape) for matrix in matrices] == [(390, 392), (390, 390), (1, 390)]
    for matrix in matrices:
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert 0.97 * bound < matrix.abs().max() <= bound
    assert all((value == 0).all() for value in state.values() if value.ndim == 1)
    images = torch.rand(3, 2, 14, 14)
    hidden = images.flatten(1)
    for matrix in matrices[:2]:
        hidden = F.relu(hidden @ matrix.T)
    torch.testing.assert_close(model(images)[:, 1:], hidden @ matrices[2].T, atol=1e-5, rtol=1e-5)
    assert {name: len(find_head(build_model(name, channels=1, classes=2, size=14)).weight[0]) for name in MODELS
            if name.startswith("irm_mlp")} == {"irm_mlp": 390, "irm_mlp_256": 256, "irm_mlp_83": 83}  # fmt: skip


def test_dair_cnn_is_the_authors() -> None:
    model = build_model("dair_cnn", channels=3, classes=2)
    shapes = [tuple(value.shape) for value in model.state_dict().values() if value.ndim > 1]
    assert shapes == [(6, 3, 4, 4), (16, 6, 4, 4), (96, 16, 4, 4), (64, 96), (1, 64)]


@pytest.mark.parametrize("name", ["irm_mlp", "dair_cnn"])
def test_one_logit_is_given_as_two(name: str) -> None:
    """The cross-entropy of both is the binary cross-entropy of the one."""
    size = 14 if name == "irm_mlp" else 28
    model = build_model(name, channels=3, classes=2, size=size).double()
    images, label = torch.rand(6, 3, size, size).double(), torch.tensor([0, 1, 1, 0, 1, 0])
    logits = model(images)
    assert find_head(model).out_features == 1
    assert (logits[:, 0] == 0).all()
    binary = F.binary_cross_entropy_with_logits(logits[:, 1], label.double())
    assert F.cross_entropy(logits, label).item() == pytest.approx(binary.item(), abs=1e-12)
    assert build_model(name, channels=3, classes=5, size=size).double()(images).shape == (6, 5)


def test_a_linear_network_is_its_head() -> None:
    model = build_model("linear", channels=2, classes=2, size=14)
    images = torch.rand(3, 2, 14, 14)
    head = find_head(model)
    assert torch.equal(model(images), images.flatten(1) @ head.weight.T + head.bias)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_network_is_known_from_its_file(name: str, classes: int, tmp_path: Path) -> None:
    size = 28 if name == "dair_cnn" else 10
    model = build_model(name, channels=2, classes=classes, size=size)
    save_weights(tmp_path / "weights.safetensors", model)
    again = load_model(str(tmp_path / "weights.safetensors"))
    images = torch.rand(3, 2, size, size)
    assert torch.equal(again(images), model(images))
    assert getattr(again, "name", None) == name


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_from_the_global_generator(name: str) -> None:
    first, second, third = (torch.cat([p.flatten() for p in seeded(name, seed).parameters()]) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def seeded(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(name, channels=2, classes=2)


def test_a_patch_is_told_where_it_lies() -> None:
    """Without it the mean over patches could not tell an image from one with its halves exchanged."""
    model = build_model("small_vit", channels=2, classes=2).eval()
    images = torch.rand(2, 2, 14, 14)
    assert model(images).shape == (2, 2)
    moved = images.roll(8, dims=3)
    assert (model(images) - model(moved)).abs().max() > 1e-4
