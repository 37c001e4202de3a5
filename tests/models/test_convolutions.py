"""Convolutions whose gradients are differentiated, against torch's own."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from ipg.models.convolutions import differentiable_twice

SHAPES: list[dict[str, Any]] = [
    {"out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 1},
    {"out_channels": 12, "kernel_size": 1},
    {"out_channels": 8, "groups": 8, "kernel_size": 3, "padding": 1},
    {"out_channels": 16, "groups": 8, "kernel_size": 3, "stride": 2, "padding": 1},
    {"out_channels": 12, "groups": 4, "kernel_size": (3, 5), "padding": (0, 2), "dilation": (1, 2), "bias": True},
    {"out_channels": 8, "groups": 8, "kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    {"out_channels": 8, "groups": 8, "kernel_size": 3, "padding": "same"},
]


def pair_of(shape: dict[str, Any]) -> tuple[nn.Conv2d, nn.Conv2d]:
    """A layer as it is, and one like it whose gradients are differentiated our way."""
    torch.manual_seed(0)
    plain = nn.Conv2d(8, **{"bias": False, **shape}).double()
    other = copy.deepcopy(plain)
    differentiable_twice(other)
    return plain, other


def derivatives(layer: nn.Module, x: Tensor, times: int) -> list[Tensor]:
    """By the input and the weights, of sums of powers of derivatives by the input, `times` over."""
    x = x.clone().requires_grad_()
    value = layer(x).pow(3).sum()
    for _ in range(times - 1):
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        value = slope.pow(2).sum()
    return list(torch.autograd.grad(value, [x, *layer.parameters()]))


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives(shape: dict[str, Any], times: int) -> None:
    plain, other = pair_of(shape)
    x = torch.randn(2, 8, 7, 9, dtype=torch.float64)
    torch.testing.assert_close(other(x), plain(x), atol=1e-14, rtol=1e-12)
    for found, expected in zip(derivatives(other, x, times), derivatives(plain, x, times), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_gradients_of_gradients_are_those_of_small_steps() -> None:
    _, layer = pair_of(SHAPES[3])
    x = torch.randn(1, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = layer.weight.detach().requires_grad_()

    def convolved(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, (x,))

    assert torch.autograd.gradgradcheck(convolved, (x, weight))


def test_half_precision_beside_single() -> None:
    plain, other = (layer.float() for layer in pair_of(SHAPES[4]))
    x = torch.randn(2, 8, 7, 9)
    with torch.autocast("cpu", torch.bfloat16):
        assert other(x).dtype == plain(x).dtype == torch.bfloat16
        found, expected = derivatives(other, x, 2), derivatives(plain, x, 2)
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == two.dtype == torch.float32
        assert float((one - two).norm() / two.norm()) < 2e-2


@pytest.mark.filterwarnings("ignore")  # of the profiler, on machines without a GPU
def test_as_many_operations_for_many_groups_as_for_few() -> None:
    counts = []
    for groups in (2, 64):
        layer = nn.Conv2d(64, 64, 3, padding=1, groups=groups, bias=False)
        differentiable_twice(layer)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            derivatives(layer, torch.randn(1, 64, 5, 5), 2)
        counts.append(sum(event.count for event in seen.key_averages() if event.key.startswith("aten::conv")))
    assert 0 < counts[0] == counts[1]


def test_no_kernel_is_as_large_as_the_image() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 1, bias=False))
    differentiable_twice(model)
    with CountKernels() as seen:
        derivatives(model, torch.randn(1, 3, 9, 9), 2)
    assert seen.largest == 3


class CountKernels(TorchDispatchMode):
    """Notes the largest kernel that something is convolved with."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.largest = max(self.largest, *args[1].shape[2:])
        return func(*args, **(kwargs or {}))


def test_other_layers_stay_and_copies_go_along() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU())
    names = list(model.state_dict())
    differentiable_twice(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for one in (model, copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert type(one[0]) is nn.Conv2d
        assert type(one[1]) is not nn.Conv2d
        assert isinstance(one[1], nn.Conv2d)
        assert list(one.state_dict()) == names
        assert one(torch.rand(1, 3, 4, 4)).shape == (1, 8, 2, 2)
