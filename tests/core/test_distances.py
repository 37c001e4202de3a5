"""Distances between rationales against matrices that are built in full, on every device and in every precision."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import ipg.rationale as rationales
from ipg.rationale import (
    alignment,
    disagreeing,
    pairwise_distances,
    rationale,
    scaled_features,
    share,
    uniformity,
)


def head_and_features(n: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, n, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    label = torch.randint(classes, (n,), generator=generator)
    return first, second, weight, label


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 6),
    width=st.integers(1, 9),
    classes=st.integers(1, 7),
    seed=st.integers(0, 10_000),
    margin=st.sampled_from([0.0, 0.5, 3.0, 100.0]),
    labels=st.sampled_from(["one class", "all different", "random"]),
)
def test_losses_equal_those_of_built_rationales(
    naive: ModuleType, n: int, width: int, classes: int, seed: int, margin: float, labels: str
) -> None:
    first, second, weight, label = head_and_features(n, width, classes, seed)
    if labels != "random":
        label = torch.zeros(n, dtype=torch.long) if labels == "one class" else torch.arange(n)
    for tensor in (first, second, weight):
        tensor.requires_grad_()
    r_first = [naive.rationale(z, weight) for z in first]
    r_second = [naive.rationale(z, weight) for z in second]
    slow_align = naive.alignment(r_first, r_second)
    slow_uniform = naive.uniformity(r_first, r_second, label.tolist(), margin)

    one, two = scaled_features(first, weight), scaled_features(second, weight)
    distances = pairwise_distances(torch.stack([one, two]))
    align = alignment(one, two)
    uniform = uniformity(distances, label[:, None] != label, margin)

    close = {"atol": 1e-12, "rtol": 1e-12}
    built = torch.stack([torch.stack([naive.frobenius(a - b) for b in r]) for r in (r_first, r_second) for a in r])
    torch.testing.assert_close(distances.reshape(2 * n, n), built, **close)
    torch.testing.assert_close(align, slow_align, **close)
    torch.testing.assert_close(uniform, slow_uniform, **close)
    if labels == "one class":
        assert uniform.item() == 0
    inputs = (first, second, weight)
    slow = torch.autograd.grad(slow_align + slow_uniform, inputs)
    fast = torch.autograd.grad(align + uniform, inputs)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_uniformity_of_labels_that_all_differ_by_hand() -> None:
    # three points on a line at 0, 1, 3 in both members, margin 2: hinges 1 (0-1), 0 (0-3), 0 (1-3 = 2)
    points = torch.tensor([[0.0], [1.0], [3.0]])
    distances = pairwise_distances(torch.stack([points, points]))
    different = ~torch.eye(3, dtype=torch.bool)
    # two members, two orders: 4 hinges of 1, over 2 * 3²
    assert uniformity(distances, different, 2.0).item() == pytest.approx(4 / 18)
    # margin 2.5 adds 0.5 for the couple (1, 3) and lifts the first to 1.5
    assert uniformity(distances, different, 2.5).item() == pytest.approx(4 * (1.5 + 0.5) / 18)


def test_gradients_of_many_distances_are_those_of_few() -> None:
    """Of single precision, too, and far from the origin, against the naive form in double precision."""
    near = torch.randn(2, 7, 3) / 1024
    near[1, 4] = near[1, 2]  # one point, where there is no gradient
    pull = torch.randn(2, 7, 7)  # not symmetric
    for points in (near.double(), 3 + near):
        points.requires_grad_()
        exact = points.detach().double().requires_grad_()
        distances = rationales._ManyDistances.apply(points)
        assert torch.equal(distances, pairwise_distances(points))
        (many,) = torch.autograd.grad((distances * pull).sum(), points)
        (few,) = torch.autograd.grad((pairwise_distances(exact) * pull).sum(), exact)
        close = 1e-12 if points.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(many.double(), few, atol=close, rtol=close)


class NoCdist(TorchDispatchMode):
    """A device whose `cdist` cannot be differentiated, as it long was on Apple's GPUs."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "cdist" not in str(function)
        return function(*args, **(kwargs or {}))


def test_other_devices_need_no_cdist() -> None:
    points = torch.randn(2, 7, 3, device="meta", requires_grad=True)
    with NoCdist():
        (slopes,) = torch.autograd.grad(pairwise_distances(points).sum(), points)
    assert slopes.shape == points.shape
    with pytest.raises(AssertionError), NoCdist():
        pairwise_distances(torch.randn(2, 7, 3))


def test_the_form_of_other_devices_is_that_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near each other and far from the origin, and at distance 0, where the gradient is 0."""
    points = 3 + torch.randn(2, 7, 3, dtype=torch.float64) / 1024
    points[1, 4] = points[1, 2]
    points.requires_grad_()
    pull = torch.randn(2, 7, 7, dtype=torch.float64)
    here = pairwise_distances(points)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # they have the form of compiled networks
    there = pairwise_distances(points)
    torch.testing.assert_close(there, here, atol=1e-14, rtol=1e-12)
    slopes = [torch.autograd.grad((distances * pull).sum(), points)[0] for distances in (here, there)]
    torch.testing.assert_close(*slopes, atol=1e-11, rtol=1e-11)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_differences_of_many_pairs_are_never_all_in_memory() -> None:
    """Those of `cdist` would be 2.1 GB."""
    n, width = 512, 1024
    points = torch.randn(2, n, width, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    pairwise_distances(points).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 2**28


def test_small_distances_survive_cancellation() -> None:
    # two rationales 0.0045 apart far from the origin: the matrix-product form of cdist answers something else
    far = torch.full((1, 512), 3.0)
    near = far + 0.0045 / 512**0.5
    both = torch.cat([far, near])
    truth = torch.linalg.vector_norm((far - near).double()).item()
    assert truth == pytest.approx(0.0045, rel=2e-3)
    ours = pairwise_distances(both[None])[0, 0, 1].item()
    assert ours == pytest.approx(truth, rel=1e-4)
    product = torch.cdist(both, both, compute_mode="use_mm_for_euclid_dist")[0, 1].item()
    assert abs(product - truth) > 0.5 * truth  # what is avoided
    assert alignment(far, near).item() == pytest.approx(truth, rel=1e-4)


def test_identical_members_have_a_zero_and_finite_gradient() -> None:
    features = torch.randn(4, 3, requires_grad=True)
    weight = torch.randn(2, 3, requires_grad=True)
    embedded = scaled_features(features, weight)
    same = embedded[:1].expand(4, 3)  # all four on one point
    label = torch.tensor([0, 1, 0, 1])
    loss = alignment(embedded, embedded.clone()) + uniformity(
        pairwise_distances(torch.stack([same, same])), label[:, None] != label, 1.0
    )
    assert loss.item() == pytest.approx(0.5)  # half of the couples differ, each short of the margin by all of it
    for gradient in torch.autograd.grad(loss, (features, weight)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    features, weight = torch.randn(6, 32).to(dtype), torch.randn(3, 32).to(dtype)
    embedded = scaled_features(features, weight)
    assert embedded.dtype == torch.float32
    torch.testing.assert_close(embedded, scaled_features(features.float(), weight.float()), atol=0, rtol=0)
    exact = scaled_features(features.double(), weight.double())
    torch.testing.assert_close(embedded.double(), exact, atol=1e-5, rtol=1e-6)
    model = nn.Linear(32, 3).to(dtype)
    r = rationale(model, features)
    assert r.dtype == torch.float32
    torch.testing.assert_close(r, features.float()[:, :, None] * model.weight.float().T)


def test_double_precision_stays() -> None:
    embedded = scaled_features(torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))
    assert embedded.dtype == torch.float64


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_disagreement_meets_the_threshold_it_equals(naive: ModuleType, dtype: torch.dtype, device: str) -> None:
    # k/n must compare with the number k/n as equal: a violated condition is δ ≥ τ
    for n in (1, 3, 7, 10, 49, 128):
        for k in range(n + 1):
            first = torch.eye(2, dtype=dtype, device=device)[torch.zeros(n, dtype=torch.long)]
            second = torch.eye(2, dtype=dtype, device=device)[(torch.arange(n) < k).long()]
            delta = share(disagreeing(first, second), dtype)
            assert delta.dtype == dtype
            assert bool(delta >= k / n), (k, n)
            assert not bool(delta > k / n), (k, n)
            assert delta.item() == pytest.approx(naive.disagreement([0] * n, [int(i < k) for i in range(n)]))
