"""The fused kernels against float64: on a GPU where there is one, else by triton's interpreter (`test_fused.py`)."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.models import build_model, fused
from ipg.models.fused import relu_group_norm
from ipg.models.small import ConvNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GROUPS = 8
SHAPES = [(3, 16, 7), (2, 64, 9), (2, 128, 4), (1, 64, 28)]
"""Images, channels and side: blocks of all groups and of some, one span of positions and several."""


def inputs(images: int, channels: int, side: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(images * channels * side)
    x = torch.randn(images, channels, side, side, generator=generator).to(DEVICE, dtype)
    vectors = [torch.randn(channels, generator=generator).to(DEVICE) for _ in range(3)]
    return [given.requires_grad_() for given in (x.to(memory_format=torch.channels_last), *vectors)]


def exactly(x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, *, pooled: bool) -> Tensor:
    y = F.group_norm(F.relu(x + bias[:, None, None]), GROUPS, weight, shift)
    return y.mean(dim=(2, 3)) if pooled else y


def off(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("shape", "pooled"), list(product(SHAPES, (False, True))))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 5e-3)])
def test_values_and_gradients(shape: tuple[int, int, int], pooled: bool, dtype: torch.dtype, tolerance: float) -> None:
    given = inputs(*shape, dtype)
    wide = [each.detach().double().requires_grad_() for each in given]
    found, expected = relu_group_norm(*given, groups=GROUPS, pooled=pooled), exactly(*wide, pooled=pooled)
    assert found.dtype == (torch.float32 if pooled else dtype)
    assert off(found, expected) < tolerance
    slope = torch.randn_like(found)
    gradients = torch.autograd.grad(found, given, slope)
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, wide, slope.double()), strict=True):
        assert off(gradient, exact) < tolerance
    assert gradients[0].is_contiguous(memory_format=torch.channels_last)


def test_the_same_bits_again() -> None:
    given = inputs(2, 64, 9, torch.float32)
    first, second = (torch.autograd.grad(relu_group_norm(*given, groups=GROUPS).pow(2).sum(), given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_other_layouts() -> None:
    x, *vectors = inputs(2, 16, 5, torch.float32)
    plain = x.detach().contiguous().requires_grad_()
    assert torch.equal(relu_group_norm(plain, *vectors, groups=GROUPS), relu_group_norm(x, *vectors, groups=GROUPS))


def test_gradients_of_gradients() -> None:
    given = inputs(2, 16, 5, torch.float32)
    wide = [each.detach().double().requires_grad_() for each in given]

    def twice(y: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad(y.pow(3).sum(), of[:1], create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), of)

    found, expected = twice(relu_group_norm(*given, groups=GROUPS), given), twice(exactly(*wide, pooled=False), wide)
    for gradient, exact in zip(found, expected, strict=True):
        assert off(gradient, exact) < 1e-5


@pytest.mark.parametrize("fixed", [(1, 2, 3), (0,), (0, 1, 3)])
def test_gradients_of_gradients_of_frozen_layers(fixed: tuple[int, ...]) -> None:
    """Of a whole layer, of images that need none, and of one that is frozen in part."""
    given = inputs(2, 16, 5, torch.float32)
    wide = [each.detach().double().requires_grad_() for each in given]
    for each in (of[place] for of in (given, wide) for place in fixed):
        each.requires_grad_(False)

    def twice(y: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
        free = [each for each in of if each.requires_grad]
        slopes = torch.autograd.grad(y.pow(3).sum(), free, create_graph=True)
        return torch.autograd.grad(sum(slope.pow(2).sum() for slope in slopes), free)

    found, expected = twice(relu_group_norm(*given, groups=GROUPS), given), twice(exactly(*wide, pooled=False), wide)
    for gradient, exact in zip(found, expected, strict=True):
        assert off(gradient, exact) < 1e-5


def test_not_a_number_stays_one() -> None:
    x, *vectors = inputs(2, 16, 4, torch.float32)
    with torch.no_grad():
        x[0, 0, 0, 0] = torch.nan
    found = relu_group_norm(x, *vectors, groups=GROUPS)
    assert int(found.isnan().sum()) == 16 * 16 // GROUPS  # its group of its image, and no other


def test_traced_as_it_runs() -> None:
    given = inputs(2, 16, 4, torch.float32)
    for pooled in (False, True):
        torch.library.opcheck(fused._fused, (*given, GROUPS, 1e-5, pooled))


def test_widths_without_a_kernel() -> None:
    x, *vectors = inputs(2, 24, 4, torch.float32)  # three channels a group
    wide = [each.detach().double() for each in (x, *vectors)]
    assert off(relu_group_norm(x, *vectors, groups=GROUPS), exactly(*wide, pooled=False)) < 2e-6


def test_a_network_gives_what_its_layers_give(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build_model("small_cnn", channels=2, classes=2).to(DEVICE)
    assert isinstance(model, ConvNet)
    images = torch.rand(2, 2, 14, 14, device=DEVICE)
    expected = model(images)
    monkeypatch.setattr("ipg.models.small._in_half", lambda images: True)
    near = 1e-2 if DEVICE == "cuda" else 1e-5  # convolutions on a GPU round to TF32
    torch.testing.assert_close(model(images), expected, atol=near, rtol=near)
    slopes = [torch.autograd.grad(said.pow(2).sum(), list(model.parameters())) for said in (model(images), expected)]
    for found, exact in zip(*slopes, strict=True):
        torch.testing.assert_close(found, exact, atol=10 * near, rtol=10 * near)
