"""B-cos networks: what layers compute, and that their weights W(x) times the input sum to the logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ipg.models import build_model, describe, save_weights
from ipg.models.bcos import LOWERED, BatchScale2d, BcosConv2d, BcosNet, GroupScale, explaining


@pytest.fixture(autouse=True)
def _seed(own_random_state: None, one_thread: None) -> None:
    """One seed and one thread."""


def images(n: int = 3, side: int = 32) -> Tensor:
    return torch.rand(n, 3, side, side, dtype=torch.float64)


def contributions(model: nn.Module, encoded: Tensor, label: int) -> tuple[Tensor, Tensor]:
    """Σ x · W(x) of every image with its graph, and the logit."""
    encoded = encoded.requires_grad_()
    logit = model(encoded)[:, label]
    with explaining(model):
        (weights,) = torch.autograd.grad(logit.sum(), encoded, create_graph=True)
    return (encoded * weights).sum(dim=(1, 2, 3)), logit


def test_a_convolution_is_cosine_times_projection() -> None:
    layer = BcosConv2d(2, 3, 3, padding=1, stride=2, bias=False).double()
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    found = layer(x)
    patch = x[0, :, 1:4, 1:4].flatten()  # of the place (1, 1)
    for channel in range(3):
        unit = layer.weight[channel].flatten() / layer.weight[channel].norm()
        projection = unit @ patch
        cosine = projection / (patch.square().sum() + 1e-6).sqrt()
        assert found[0, channel, 1, 1].item() == pytest.approx((cosine.abs() * projection).item(), abs=1e-12)
    scaled = BcosConv2d(2, 3, 3, padding=1, stride=2, bias=False).double()
    with torch.no_grad():
        scaled.weight.copy_(7 * layer.weight)
    torch.testing.assert_close(scaled(x), found, atol=1e-12, rtol=1e-9)


def test_norms_divide_by_the_spread_alone() -> None:
    x = 3 + 2 * torch.randn(6, 4, 5, 5, dtype=torch.float64)
    batch = BatchScale2d(4, eps=1e-5, momentum=0.1).double()
    spread = x.var(dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(batch(x), x / (spread + 1e-5).sqrt()[:, None, None])
    torch.testing.assert_close(batch.running_var, 0.9 + 0.1 * spread)
    torch.testing.assert_close(batch.eval()(x), x / (batch.running_var + 1e-5).sqrt()[:, None, None])
    group = GroupScale(2, 4, eps=1e-5).double()
    first = x[0, :2] / (x[0, :2].var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(group(x)[0, :2], first)
    assert batch.bias is None
    assert group.bias is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["bcos_small_cnn", "bcos_mnist_cnn", "bcos_resnet18", "bcos_resnet50"])
def test_contributions_sum_to_the_logits(name: str, training: bool) -> None:
    model = build_model(name, channels=3, classes=3).double().train(training)
    assert isinstance(model, BcosNet)
    total, logit = contributions(model, model.encode(images()), 1)
    assert (logit + LOWERED).abs().max() > 1e-9
    torch.testing.assert_close(total, logit + LOWERED, atol=1e-13, rtol=1e-8)


def test_without_explaining_the_gradient_is_another() -> None:
    """Cosines and spreads depend on the input, so that its true derivative does not sum to the logits."""
    model = build_model("bcos_small_cnn", channels=3, classes=2).double()
    encoded = model.encode(images()).requires_grad_()
    logit = model(encoded)[:, 0]
    (slope,) = torch.autograd.grad(logit.sum(), encoded)
    assert ((encoded * slope).sum(dim=(1, 2, 3)) - logit - LOWERED).abs().min() > 1e-3


def test_the_logits_themselves_are_trained_by_their_true_gradient() -> None:
    """After an explanation from the same graph, by differences of the logit."""
    model = build_model("bcos_small_cnn", channels=3, classes=2).double()
    x = images(2)
    contributions(model, model.encode(x), 0)
    model(x)[:, 0].sum().backward()
    weight = model.body[0].weight
    found = weight.grad[3, 1, 0, 2].item()

    def logit(change: float) -> float:
        with torch.no_grad():
            weight[3, 1, 0, 2] += change
            value = model(x)[:, 0].sum().item()
            weight[3, 1, 0, 2] -= change
        return value

    assert found == pytest.approx((logit(1e-5) - logit(-1e-5)) / 2e-5, rel=1e-5)


def test_what_is_derived_from_contributions_knows_that_weights_move() -> None:
    """The sum of contributions is the logit, so that its gradient by the parameters has to be the logit's."""
    model = build_model("bcos_small_cnn", channels=3, classes=2).double()
    total, logit = contributions(model, model.encode(images(2)), 0)
    parameters = list(model.parameters())
    derived = torch.autograd.grad(total.sum(), parameters, retain_graph=True)
    direct = torch.autograd.grad(logit.sum(), parameters)
    for one, other in zip(derived, direct, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-8)


def test_images_enter_with_what_they_lack() -> None:
    model = build_model("bcos_small_cnn", channels=3, classes=2, size=16).double()
    x = images(2, 16)
    assert torch.equal(model.encode(x), torch.cat([x, 1 - x], dim=1))
    assert torch.equal(model(x), model(model.encode(x)))
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())
    assert describe(model).startswith("BcosNet: 24 k parameters, 32 features")


def test_weights_of_a_file(tmp_path: Path) -> None:
    model = build_model("bcos_small_cnn", channels=3, classes=2)
    save_weights(tmp_path / "w.safetensors", model)
    other = build_model("bcos_small_cnn", channels=3, classes=4, weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(other.body[0].weight, model.body[0].weight)
    assert other.head.weight.shape[0] == 4


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bcos_mobilenetv2_100", {}, "bcos_mobilenetv2_100 cannot be made: it has a layer BatchNormAct2d"),
        ("bcos_resnext50_32x4d", {}, "a convolution in groups or with gaps has no B-cos form"),
        ("bcos_linear", {}, "bcos_linear cannot be made: linear is no convolutional network; take bcos_small_cnn"),
        ("bcos_resnet18", {"weights": "pretrained"}, "there are no pretrained weights of bcos_resnet18 to fetch"),
        ("bcos_resnet18", {"normalization": "imagenet"}, "bcos_resnet18 takes images as they are"),
        ("bcos_quack", {}, "there is no model 'quack'"),
    ],
)
def test_what_cannot_be_made(name: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, channels=3, classes=2, **settings)  # type: ignore[arg-type]
