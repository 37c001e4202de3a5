"""The theorem, its extension to sparse corrections, and the corollary, each where it holds and where it breaks.

L_U is not convex and L_A is not smooth at 0, so the theorem is tried on quadratics of known smoothness with the pure
update rule, `task_scale`; the corollary, which speaks of predictions, on a linear model with the whole `Guidance`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.guidance import Guidance, Pairs, task_scale

ADVERSARIES: dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]] = {
    "opposes the correction": lambda g_c, here, random: -g_c,
    "climbs where it stands": lambda g_c, here, random: -here,
    "helps": lambda g_c, here, random: g_c,
    "across": lambda g_c, here, random: torch.randn(g_c.shape, generator=random, dtype=g_c.dtype),
    "is absent": lambda g_c, here, random: torch.zeros_like(g_c),
}
"""Raw task gradients, from the corrective gradient and the gradient of L_C where the task update starts."""


class Quadratics:
    """Many random quadratics ½ (θ − θ*)ᵀ H (θ − θ*) at once, each with its own largest curvature L."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        factor = torch.randn(count, size, size, generator=self.random, dtype=torch.float64)
        spread = 10 ** (4 * torch.rand(count, 1, 1, generator=self.random, dtype=torch.float64) - 2)
        self.hessian = factor @ factor.mT * spread
        self.smoothness = torch.linalg.eigvalsh(self.hessian)[:, -1]
        self.theta = torch.randn(count, size, generator=self.random, dtype=torch.float64)  # θ* is the origin

    def loss(self, theta: Tensor) -> Tensor:
        return 0.5 * torch.einsum("ni,nij,nj->n", theta, self.hessian, theta)

    def gradient(self, theta: Tensor) -> Tensor:
        return torch.einsum("nij,nj->ni", self.hessian, theta)


def cycle(
    problem: Quadratics, rates: list[Tensor], alpha: Tensor, adversary: str, *, tau: float = 0.2
) -> tuple[list[Tensor], Tensor]:
    """One correction and len(rates) task updates in the violated state; L_C after each update, and ‖g_C‖.

    The correction uses the first rate. Every task gradient goes through the rule of the library with δ = τ.
    """
    theta = problem.theta
    g_c = problem.gradient(theta)
    norm = g_c.norm(dim=1)
    theta = theta - rates[0][:, None] * g_c
    losses = [problem.loss(theta)]
    for rate in rates:
        g_t = ADVERSARIES[adversary](g_c, problem.gradient(theta), problem.random)
        delta = torch.full_like(norm, tau)
        rule = task_scale(g_t.norm(dim=1), norm, delta, alpha=alpha, tau=tau, floor=1e-3)  # elementwise
        assert rule.violated.all()
        theta = theta - (rate * rule.scale)[:, None] * g_t
        losses.append(problem.loss(theta))
    problem.theta = theta
    return losses, norm


def bound(alpha: Tensor, smoothness: Tensor, every: int = 1) -> Tensor:
    """The learning rate below which L_C falls: 2 (1 − kα) / (L (1 + kα)²)."""
    total = every * alpha
    return 2 * (1 - total) / (smoothness * (1 + total) ** 2)


def promised(rate: Tensor, alpha: Tensor, smoothness: Tensor, norm: Tensor, every: int = 1) -> Tensor:
    """How much the proof says L_C falls at least: η [(1 − kα) − (L η / 2) (1 + kα)²] ‖g_C‖²."""
    total = every * alpha
    return rate * ((1 - total) - smoothness * rate / 2 * (1 + total) ** 2) * norm**2


# -- the theorem ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_corrective_loss_falls_monotonically_below_the_bound(adversary: str, size: int) -> None:
    problem = Quadratics(100, size, seed=size)
    random = problem.random
    alpha = 0.99 * torch.rand(100, generator=random, dtype=torch.float64)
    share = 0.02 + 0.97 * torch.rand(100, generator=random, dtype=torch.float64)
    rate = share * bound(alpha, problem.smoothness)
    before = problem.loss(problem.theta)
    for _ in range(6):
        (_, after), norm = cycle(problem, [rate], alpha, adversary)
        assert (after < before).all()
        promise = promised(rate, alpha, problem.smoothness, norm)
        assert (promise > 0).all()
        assert (before - after >= promise * (1 - 1e-9) - 1e-12 * before).all()
        before = after


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 5),
    alpha=st.floats(0, 0.98),
    share=st.floats(0.05, 0.99),
    adversary=st.sampled_from(sorted(ADVERSARIES)),
)
def test_descent_holds_for_any_quadratic(seed: int, size: int, alpha: float, share: float, adversary: str) -> None:
    problem = Quadratics(4, size, seed)
    alphas = torch.full((4,), alpha, dtype=torch.float64)
    before = problem.loss(problem.theta)
    (_, after), _ = cycle(problem, [share * bound(alphas, problem.smoothness)], alphas, adversary)
    assert (after < before).all()


@pytest.mark.parametrize("rate", [0.5, 0.1, 1e-2, 1e-4])
def test_alpha_of_one_or_more_can_break_the_descent(rate: float) -> None:
    """No rate is small enough once the task gradient may be longer than the correction."""
    problem = Quadratics(1, 1, seed=0)
    problem.theta = torch.ones(1, 1, dtype=torch.float64)
    before = problem.loss(problem.theta)
    rates = [rate / problem.smoothness]
    (_, after), _ = cycle(problem, rates, torch.tensor([1.5], dtype=torch.float64), "opposes the correction")
    assert after > before
    problem.theta = torch.ones(1, 1, dtype=torch.float64)
    (_, after), _ = cycle(problem, rates, torch.tensor([1.0], dtype=torch.float64), "opposes the correction")
    torch.testing.assert_close(after, before)  # at 1 the two cancel: no strict descent


def test_the_rate_bound_is_needed() -> None:
    """With α = 0 the bound is 2/L, and past it gradient descent on a parabola climbs."""
    problem = Quadratics(1, 1, seed=0)
    before = problem.loss(problem.theta)
    alpha = torch.zeros(1, dtype=torch.float64)
    (_, after), _ = cycle(problem, [1.01 * bound(alpha, problem.smoothness)], alpha, "helps")
    assert after > before


# -- correcting only every k-th iteration ---------------------------------------------------------------------------


@pytest.mark.parametrize("every", [2, 4, 8])
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("decay", [1.0, 0.7], ids=["constant rate", "falling rate"])
def test_sparse_corrections_descend_from_cycle_to_cycle(every: int, adversary: str, decay: float) -> None:
    problem = Quadratics(40, 3, seed=every)
    random = problem.random
    alpha = (0.02 + 0.96 * torch.rand(40, generator=random, dtype=torch.float64)) / every
    share = 0.05 + 0.94 * torch.rand(40, generator=random, dtype=torch.float64)
    rate = share * bound(alpha, problem.smoothness, every)
    before = problem.loss(problem.theta)
    for _ in range(4):
        losses, norm = cycle(problem, [rate * decay**i for i in range(every)], alpha, adversary)
        assert (losses[-1] < before).all()
        for inside in losses:  # inside a cycle the loss may rise, but never above where the cycle started
            assert (inside < before).all()
        if decay == 1.0:
            promise = promised(rate, alpha, problem.smoothness, norm, every)
            assert (before - losses[-1] >= promise * (1 - 1e-9) - 1e-12 * before).all()
        before = losses[-1]


def test_inside_a_cycle_the_loss_does_rise() -> None:
    problem = Quadratics(1, 1, seed=0)
    alpha = torch.tensor([0.2], dtype=torch.float64)
    rate = 0.5 * bound(alpha, problem.smoothness, 4)
    before = problem.loss(problem.theta)
    losses, _ = cycle(problem, [rate] * 4, alpha, "opposes the correction")
    assert losses[0] < losses[1] < losses[2] < losses[3] < losses[4] < before


@pytest.mark.parametrize("rate", [0.1, 1e-2, 1e-4])
@pytest.mark.parametrize(("every", "alpha"), [(2, 0.6), (4, 0.3), (4, 0.5), (8, 0.13)])
def test_past_k_alpha_of_one_the_descent_breaks_at_any_rate(every: int, alpha: float, rate: float) -> None:
    assert every * alpha > 1
    assert alpha < 1  # fine for the paper's theorem, where k = 1
    problem = Quadratics(1, 1, seed=0)
    before = problem.loss(problem.theta)
    share = torch.tensor([alpha], dtype=torch.float64)
    losses, _ = cycle(problem, [rate / problem.smoothness] * every, share, "opposes the correction")
    assert losses[-1] > before
    assert losses[1] < before  # a correction at every iteration would have been enough


def test_a_rate_that_grows_inside_a_cycle_is_outside_the_bound() -> None:
    problem = Quadratics(1, 1, seed=0)
    alpha = torch.tensor([0.2], dtype=torch.float64)
    rate = 0.05 * bound(alpha, problem.smoothness, 4)
    before = problem.loss(problem.theta)
    losses, _ = cycle(problem, [rate, 2 * rate, 4 * rate, 8 * rate], alpha, "opposes the correction")
    assert losses[-1] > before


# -- the corollary --------------------------------------------------------------------------------------------------

PAIRS = 12


def shortcut_problem(layers: int) -> tuple[nn.Module, tuple[Tensor, Tensor], Pairs]:
    """A linear model that leans on one coordinate, a task batch that rewards it, and pairs that differ in it alone.

    Coordinates: the core (the label's sign, 0.5 to 1.5 strong), the shortcut (1 to 6 strong), and one of noise. Some
    pairs are easy to bring into agreement (strong core, weak shortcut), others hard, so disagreement falls by and by.
    """
    random = torch.Generator().manual_seed(0)
    label = torch.arange(PAIRS) % 2
    sign = 2.0 * label.double() - 1
    first = torch.stack(
        [
            sign * torch.linspace(1.5, 0.5, PAIRS, dtype=torch.float64),
            sign * torch.linspace(1, 6, PAIRS, dtype=torch.float64),
            torch.randn(PAIRS, generator=random, dtype=torch.float64),
        ],
        dim=1,
    )
    second = first.clone()
    second[:, 1] *= -1
    direction = torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64)  # twice as much weight on the shortcut
    model: nn.Module = nn.Linear(3, 2)
    head = model
    if layers == 2:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        head = model[1]
        model[0].weight.data = torch.eye(3)
        model[0].bias.data.zero_()
    head.weight.data = torch.stack([-direction, direction])
    head.bias.data.zero_()
    return model.double(), (first, label), Pairs(first, second, label)


def steps_until(
    reached: Callable[[float], bool], *, layers: int, limit: int = 400, **options: Any
) -> tuple[int, list[int]]:
    """Full-batch gradient descent; how many steps until the disagreement is as asked, and what is predicted then."""
    model, (x, y), pairs = shortcut_problem(layers)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=2e-3), alpha=0.1, margin=1.0, **options)
    assert guide.terms(pairs).disagreement.item() == 1.0  # at first every pair follows the shortcut
    for steps in range(limit):
        first, second = model(pairs.first).argmax(dim=1), model(pairs.second).argmax(dim=1)
        if reached((first != second).double().mean().item()):
            return steps, first.tolist()
        guide.step(lambda: F.cross_entropy(model(x), y), pairs)
    raise AssertionError(f"not reached in {limit} steps")


@pytest.mark.parametrize("layers", [1, 2])
def test_disagreement_falls_below_any_threshold(layers: int) -> None:
    """Part 1, finite feasibility: for τ > 0 the region δ < τ is reached, the later the smaller τ is."""
    needed = [steps_until(lambda d, t=t: d < t, layers=layers, tau=t)[0] for t in (1.0, 0.6, 0.3, 1e-3)]
    assert needed[0] > 0
    assert needed == sorted(set(needed))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("strict", [False, True])
def test_disagreement_reaches_exactly_zero(layers: int, strict: bool) -> None:
    """Part 2, finite exact convergence: for τ = 0 the disagreement is 0 after finitely many steps."""
    _, predicted = steps_until(lambda d: d == 0, layers=layers, tau=0.0, strict=strict)
    assert predicted == [0, 1] * (PAIRS // 2)  # and not by predicting one class for all


def test_without_guidance_the_disagreement_stays() -> None:
    """The same descent without pairs: what the corollary promises is the correction's doing."""
    model, (x, y), pairs = shortcut_problem(1)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=2e-3))
    for _ in range(200):
        guide.step(lambda: F.cross_entropy(model(x), y), None)
    assert guide.terms(pairs).disagreement.item() == 1.0
