"""The new head: one small scale in every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

from ipg.models import HEAD_STD, build_model, renew_head
from ipg.models.head import head_name
from ipg.rationale import find_head, pairwise_distances, scaled_features

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")

FAMILIES = {
    "test_resnet": 64,
    "resnet18": 64,
    "mobilenetv2_035": 64,
    "mobilenetv3_small_050": 64,
    "test_efficientnet": 64,
    "efficientnet_b0": 64,
    "test_convnext": 64,
    "convnext_atto": 64,
    "test_vit": 32,
    "vit_tiny_patch16_224": 32,
    "eva02_tiny_patch14_224": 28,
    "regnetx_002": 64,
    "densenet121": 64,
    "test_byobnet": 64,
    "test_nfnet": 64,
}
"""Networks of timm, the smallest of their family, and an image size that is enough for them."""


@pytest.mark.parametrize(
    ("name", "size"),
    [*FAMILIES.items(), pytest.param("swin_tiny_patch4_window7_224", 224, marks=pytest.mark.slow)],
)
def test_families(name: str, size: int, features: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = build_model(name, channels=3, classes=4, size=size)
    head = find_head(model)
    assert head.out_features == 4
    error = HEAD_STD / (2 * head.weight.numel()) ** 0.5  # the standard error of a standard deviation
    assert float(head.weight.detach().std()) == pytest.approx(HEAD_STD, abs=4 * error)
    assert not head.bias.detach().any()
    images = torch.rand(8, 3, 1, 1) * torch.rand(8, 3, size, size)
    assert 0.01 < distance(features(model.train(), images), head.weight.detach()) < 2


@pytest.mark.parametrize("name", ["mobilenetv2_035", "mobilenetv3_small_050", "test_efficientnet"])
def test_rationales_of_large_heads_come_closer(name: str, features: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = timm.create_model(name, num_classes=2)
    own = find_head(model).weight.detach().clone()
    found = features(model.train(), torch.rand(8, 3, 64, 64))
    assert distance(found, own) > 20 * distance(found, renew_head(model).weight.detach())


def distance(features: Tensor, weight: Tensor) -> float:
    """The mean distance between the rationales of different images."""
    n = len(features)
    return float(pairwise_distances(scaled_features(features, weight)).sum()) / (n * (n - 1))


def test_the_head_comes_from_the_global_generator() -> None:
    heads = [renewed(seed) for seed in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert heads[0].flatten()[:3].tolist() == pytest.approx([-0.0244095, -0.0120037, -0.0104637], abs=1e-6)


def renewed(seed: int) -> Tensor:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    torch.manual_seed(seed)
    return renew_head(model).weight.detach()


def test_a_head_without_a_bias() -> None:
    assert renew_head(nn.Sequential(nn.Linear(4, 2, bias=False))).bias is None


def test_the_name_of_the_head() -> None:
    assert head_name(timm.create_model("test_convnext")) == "head.fc"
    assert head_name(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) == "1"
