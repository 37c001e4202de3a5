"""BatchNorm in one pass against float64: on a GPU, or else by triton's interpreter (`test_fused.py`)."""

from __future__ import annotations

import copy
import io
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.models import frozen_norm as norms
from ipg.models.convolutions import differentiable_twice
from ipg.models.frozen_norm import frozen_norm, quicken

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [(torch.float32, 2e-6), (torch.bfloat16, 6e-3)]
SHAPES = [(2, 16, 5, 7), (1, 24, 9, 4), (3, 96, 6, 6), (2, 144, 3, 3)]
"""Images, channels, height and width: blocks that are filled and not, one span of positions and several."""
BOUNDS = [(-torch.inf, torch.inf), (0.0, torch.inf), (0.0, 6.0)]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU multiplies float32 in TF32 in convolutions unless told otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def randoms(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes]


def laid_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).to(memory_format=torch.channels_last).requires_grad_()


def normed(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """What is differentiated, and the statistics."""
    x, weight, bias, mean, spread = randoms(shape, *([shape[1:2]] * 4))
    return [laid_out(3 * x, dtype), weight.requires_grad_(), bias.requires_grad_()], [mean, spread.square() + 0.1]


def exactly(given: list[Tensor], known: list[Tensor], low: float, high: float) -> Tensor:
    x, weight, bias = given
    mean, variance = (value.double()[:, None, None] for value in known)
    y = (x - mean) / (variance + 1e-5).sqrt() * weight[:, None, None] + bias[:, None, None]
    return y.clamp(low, high)


def off(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def check_gradients(
    found: Tensor, given: list[Tensor], expected: Tensor, wide: list[Tensor], *, tolerance: float
) -> None:
    assert off(found, expected) < tolerance
    slope = torch.randn_like(found)
    gradients = torch.autograd.grad(found, given, slope)
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, wide, slope.double()), strict=True):
        assert off(gradient, exact) < tolerance
    assert gradients[0].is_contiguous(memory_format=torch.channels_last)


def widened(given: list[Tensor]) -> list[Tensor]:
    return [each.detach().double().requires_grad_() for each in given]


@pytest.mark.parametrize(("shape", "bounds"), list(product(SHAPES, BOUNDS)))
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_norm(shape: tuple[int, ...], bounds: tuple[float, float], dtype: torch.dtype, tolerance: float) -> None:
    given, known = normed(shape, dtype)
    wide = widened(given)
    found = frozen_norm(*given, *known, low=bounds[0], high=bounds[1])
    assert found.dtype == dtype
    check_gradients(found, given, exactly(wide, known, *bounds), wide, tolerance=tolerance)


def test_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "BLOCKS", 3)  # each part goes over several spans
    monkeypatch.setattr(norms, "ENTRIES", 128)
    given, known = normed((3, 32, 7, 5), torch.float32)
    wide = widened(given)
    found = frozen_norm(*given, *known, low=0.0)
    check_gradients(found, given, exactly(wide, known, 0.0, torch.inf), wide, tolerance=2e-6)


def test_the_same_bits_again() -> None:
    given, known = normed((2, 96, 6, 6), torch.float32)

    def slopes() -> tuple[Tensor, ...]:
        return torch.autograd.grad(frozen_norm(*given, *known, low=0.0, high=6.0).pow(2).sum(), given)

    assert all(torch.equal(a, b) for a, b in zip(slopes(), slopes(), strict=True))


def powers(y: Tensor, of: list[Tensor], wanted: list[int], times: int) -> tuple[Tensor, ...]:
    """Derivatives of sums of powers of derivatives by some of these, `times` over."""
    value = y.pow(3).sum()
    for _ in range(times - 1):
        slopes = torch.autograd.grad(value, [of[number] for number in wanted], create_graph=True)
        value = torch.stack([slope.pow(2).sum() for slope in slopes]).sum()
    return torch.autograd.grad(value, of)


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 1, 2]])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_gradients_of_gradients(bounds: tuple[float, float], wanted: list[int], times: int) -> None:
    given, known = normed((2, 16, 5, 5), torch.float32)
    wide = widened(given)
    found = powers(frozen_norm(*given, *known, low=bounds[0], high=bounds[1]), given, wanted, times)
    for gradient, exact in zip(found, powers(exactly(wide, known, *bounds), wide, wanted, times), strict=True):
        assert off(gradient, exact) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("shape", "bounds"), list(product(SHAPES, BOUNDS)))
@pytest.mark.parametrize("blocks", [None, 3])
def test_second_pass_back(
    shape: tuple[int, ...], bounds: tuple[float, float], dtype: torch.dtype, tolerance: float, blocks: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if blocks is not None:  # each part goes over several spans
        monkeypatch.setattr(norms, "BLOCKS", blocks)
        monkeypatch.setattr(norms, "ENTRIES", 128)
    given, known = normed(shape, dtype)
    wide = widened(given)
    back, again = randoms(shape, shape)

    def twice(y: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
        first = back.to(y.dtype).requires_grad_()
        (slope,) = torch.autograd.grad(y, of[:1], first, create_graph=True)
        return torch.autograd.grad(slope, [first, of[1]], again.to(y.dtype))  # again lies otherwise than the slope

    found = twice(frozen_norm(*given, *known, low=bounds[0], high=bounds[1]), given)
    for gradient, exact in zip(found, twice(exactly(wide, known, *bounds), wide), strict=True):
        assert off(gradient, exact) < tolerance
    again_found = twice(frozen_norm(*given, *known, low=bounds[0], high=bounds[1]), given)
    assert all(torch.equal(one, two) for one, two in zip(found, again_found, strict=True))


def test_gradients_of_gradients_of_frozen_layers() -> None:
    (x, *fixed), known = normed((2, 16, 5, 5), torch.float32)
    for each in fixed:
        each.requires_grad_(False)
    (slope,) = torch.autograd.grad(frozen_norm(x, *fixed, *known).pow(3).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(slope.pow(2).sum(), x)
    wide = widened([x])
    expected = exactly([*wide, *fixed], known, -torch.inf, torch.inf)
    (slope,) = torch.autograd.grad(expected.pow(3).sum(), wide, create_graph=True)
    assert off(found, *torch.autograd.grad(slope.pow(2).sum(), wide)) < 1e-5


def test_not_a_number_stays_one() -> None:
    given, known = normed((2, 16, 4, 4), torch.float32)
    with torch.no_grad():
        given[0][0, 3, 1, 1] = torch.nan
    found = frozen_norm(*given, *known, low=0.0, high=6.0)
    assert found.isnan().nonzero().tolist() == [[0, 3, 1, 1]]


def test_traced_as_it_runs() -> None:
    given, known = normed((2, 16, 4, 4), torch.float32)
    torch.library.opcheck(norms._fused, (*given, *known, 1e-5, 0.0, 6.0))
    slope = laid_out(torch.ones_like(given[0]), torch.float32)
    torch.library.opcheck(norms._fused_backward, (slope, *given, *known, 1e-5, 0.0, 6.0))
    fixed = [each.detach() for each in (slope, slope, *given)]
    torch.library.opcheck(norms._fused_second_backward, (*fixed, *known, 1e-5, 0.0, 6.0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each call of the kernel."""
    made: list[str] = []
    plain = frozen_norm

    def noted(*given: Any, **options: Any) -> Tensor:
        made.append("call")
        return plain(*given, **options)

    monkeypatch.setattr(norms, "frozen_norm", noted)
    return made


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8, affine=False))
    return made.to(DEVICE).to(memory_format=torch.channels_last)


def test_a_network_gives_what_it_gave(calls: list[str]) -> None:
    model, images = a_network().eval(), laid_out(*randoms((2, 3, 9, 9)), torch.float32)
    expected, names = model(images), list(model.state_dict())
    assert not calls
    quicken(model)
    near = 1e-2 if DEVICE == "cuda" else 1e-5  # convolutions on a GPU round to TF32
    torch.testing.assert_close(model(images), expected, atol=near, rtol=near)
    assert len(calls) == 1  # of the two norms the one that has weights
    assert list(model.state_dict()) == names
    assert isinstance(model[1], nn.BatchNorm2d)


def test_copies_run_as_fast(calls: list[str]) -> None:
    model, images = a_network().eval(), laid_out(*randoms((2, 3, 9, 9)), torch.float32)
    quicken(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    expected = model(images)
    for copied in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        calls.clear()
        assert torch.equal(copied(images), expected)
        assert len(calls) == 1
        assert copied[1].weight is not model[1].weight


def test_statistics_of_the_batch_run_as_written(calls: list[str]) -> None:
    model, images = a_network().train(), laid_out(*randoms((2, 3, 9, 9)), torch.float32)
    other = copy.deepcopy(model)
    quicken(model)
    torch.testing.assert_close(model(images), other(images))
    assert not calls
    assert model[1].num_batches_tracked == 1


def test_timm_s_norms_with_what_is_in_them() -> None:
    layers = pytest.importorskip("timm.layers")
    (x,) = randoms((2, 16, 5, 5))
    x = laid_out(4 * x, torch.float32)
    for act, quick in ((nn.ReLU6, True), (nn.ReLU, True), (nn.Identity, True), (nn.SiLU, False)):
        norm = layers.BatchNormAct2d(16, act_layer=act).to(DEVICE).eval()
        nn.init.normal_(norm.weight)
        expected = norm(x)
        quicken(norm)
        assert (type(norm) is not layers.BatchNormAct2d) is quick
        torch.testing.assert_close(norm(x), expected, atol=1e-5, rtol=1e-5)


def test_other_layouts_run_as_written(calls: list[str]) -> None:
    model, (images,) = a_network().eval(), randoms((2, 3, 9, 9))
    quicken(model)
    assert model.double()(images.double()).dtype == torch.float64
    half = copy.deepcopy(model).bfloat16().to(memory_format=torch.channels_last)
    assert half(laid_out(images, torch.bfloat16)).dtype == torch.bfloat16
    assert model.float().to(memory_format=torch.contiguous_format)(images.contiguous()).shape == (2, 8, 7, 7)
    assert not calls


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_KERNELS", "0")
    model = a_network()
    quicken(model)
    assert type(model[1]) is nn.BatchNorm2d


def networks(*, twice: bool) -> tuple[nn.Module, nn.Module]:
    """A network with our layers, and the same by torch in float64; one of its convolutions has a bias."""
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 16, 2),
    ).eval().to(DEVICE)  # fmt: skip
    ours = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    quicken(ours)
    if twice:
        differentiable_twice(ours)
    return ours, plain.double()


def compare(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert all(off(one, two) < tolerance for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("task", [True, False])
@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_a_network_whose_slopes_are_trained(dtype: torch.dtype, tolerance: float, twice: bool, task: bool) -> None:
    """As EPG and GALS do: the gradient by the images is looked at, and that is differentiated by the weights."""
    (image,) = randoms((4, 3, 8, 8))

    def slopes(model: nn.Module, wide: torch.dtype, autocast: bool) -> list[Tensor]:
        x = image.to(wide).to(memory_format=torch.channels_last).requires_grad_()
        with torch.autocast(DEVICE, dtype, enabled=autocast):
            said = model(x)
        (slope,) = torch.autograd.grad(said[:, 0].sum().to(wide), x, create_graph=True)
        penalty = (x * slope).sum(1).relu()[:, :3].square().sum()
        (penalty + said.to(wide).square().mean() * task).backward()
        return [each.grad for each in model.parameters() if each.grad is not None and each.grad.any()]

    ours, exact = networks(twice=twice)
    found = slopes(ours, torch.float32, dtype != torch.float32)
    assert len(found) > 6
    compare(found, slopes(exact, torch.float64, autocast=False), tolerance)


def test_a_network_after_a_step_that_is_differentiated() -> None:
    """As meta-IRM does: the loss after an inner step, differentiated by the weights before it."""
    (image,) = randoms((4, 3, 8, 8))

    def gradients(model: nn.Module, wide: torch.dtype) -> list[Tensor]:
        x = image.to(wide).to(memory_format=torch.channels_last)
        own = dict(model.named_parameters())
        inner = torch.autograd.grad(model(x).square().mean(), list(own.values()), create_graph=True)
        moved = {name: value - 0.1 * slope for (name, value), slope in zip(own.items(), inner, strict=True)}
        loss = torch.func.functional_call(model, moved, (x.flip(0) + 0.1,)).pow(4).mean()
        return list(torch.autograd.grad(loss, list(own.values())))

    ours, exact = networks(twice=False)
    compare(gradients(ours, torch.float32), gradients(exact, torch.float64), 1e-4)
