"""X-DNNs: no bias, no normalisation, Fixup's beginning, and attributions that sum to the logits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from ipg.models import ImageModel, build_model, save_weights
from ipg.rationale import find_head


@pytest.fixture(autouse=True)
def _seed(own_random_state: None, one_thread: None) -> None:
    """One seed and one thread."""


@pytest.mark.parametrize("name", ["xdnn_small_cnn", "xdnn_resnet18", "xdnn_resnet50"])
def test_input_times_gradient_sums_to_the_logits(name: str) -> None:
    model = build_model(name, channels=3, classes=3).double()
    for parameter in model.parameters():  # also those that begin at 0
        parameter.data += 0.02 * torch.randn_like(parameter)
    mean = model.mean if isinstance(model, ImageModel) else torch.zeros(1)
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    logit = model(x)[:, 1]
    (slope,) = torch.autograd.grad(logit.sum(), x)
    assert logit.abs().max() > 1e-6
    torch.testing.assert_close(((x - mean) * slope).sum(dim=(1, 2, 3)), logit, atol=1e-10, rtol=1e-8)
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())
    assert not any(isinstance(module, nn.BatchNorm2d | nn.GroupNorm) for module in model.modules())


@pytest.mark.parametrize(("name", "blocks", "factor"), [("xdnn_resnet18", 8, -1 / 2), ("xdnn_resnet50", 16, -1 / 4)])
def test_a_resnet_begins_as_fixup_does(name: str, blocks: int, factor: float) -> None:
    model = build_model(name, channels=3, classes=2)
    found = [block for stage in range(1, 5) for block in getattr(model.backbone, f"layer{stage}")]
    assert len(found) == blocks
    for block in found:
        first, last = block.conv1.weight, (block.conv3 if blocks == 16 else block.conv2).weight
        assert not last.any()
        he = math.sqrt(2 / (first.shape[0] * first[0, 0].numel()))
        assert first.std().item() == pytest.approx(he * blocks**factor, rel=0.1)
    head = find_head(model)
    assert head.bias is None
    assert 0.01 < head.weight.std().item() < 0.02


def test_weights_of_a_file(tmp_path: Path) -> None:
    model = build_model("xdnn_resnet18", channels=3, classes=5)
    save_weights(tmp_path / "w.safetensors", model)
    other = build_model("xdnn_resnet18", channels=3, classes=2, weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(other.backbone.conv1.weight, model.backbone.conv1.weight)
    assert other.origin == "weights from w.safetensors"
    assert find_head(other).out_features == 2


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("xdnn_vit_tiny_patch16_224", {}, "xdnn_vit_tiny_patch16_224 cannot be made: it has a layer"),
        ("xdnn_resnet18", {"weights": "pretrained"}, "there are no pretrained weights of xdnn_resnet18 to fetch"),
        ("xdnn_small_cnn", {"normalization": "half"}, "xdnn_small_cnn takes images as they are"),
        ("xdnn_irm_mlp", {}, "xdnn_irm_mlp cannot be made: irm_mlp is no convolutional network"),
    ],
)
def test_what_cannot_be_made(name: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, channels=3, classes=2, **settings)  # type: ignore[arg-type]
