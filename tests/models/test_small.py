"""Our own networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.models import MODELS, FirstConv2d, build_model
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
    ],
)
def test_number_of_parameters(name: str, channels: int, classes: int, expected: int) -> None:
    model = build_model(name, channels=channels, classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [8, 14, 28])
def test_logits_of_images_of_any_size(name: str, size: int) -> None:
    model = build_model(name, channels=2, classes=3)
    assert model(torch.rand(5, 2, size, size)).shape == (5, 3)
    assert find_head(model).out_features == 3


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_from_the_global_generator(name: str) -> None:
    first, second, third = (torch.cat([p.flatten() for p in seeded(name, seed).parameters()]) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def seeded(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(name, channels=2, classes=2)
