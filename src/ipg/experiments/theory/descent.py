"""What the theory promises of the corrective loss, tried where its assumptions hold: on quadratics of known smoothness.

    L_C(θ) = ½ θᵀ H θ        L_T(θ) = ½ ‖θ − t‖²        the condition is violated throughout

Every iteration makes the two updates of Algorithm 1 through one optimizer, the task gradient rescaled by the rule that
training uses. Four ways to step: plain gradient descent (the theorem), gradients with noise and a falling rate (the
paper's remark on SGD: descent in the mean), momentum (a lag, then descent) and Adam (outside the theory).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ipg.guidance import task_scale

__all__ = ["ALPHA", "WAYS", "Descent", "Problems", "Way", "descend", "descents", "longest"]

SIZE = 6
ALPHA = 0.5
NOISE = 0.3
"""Of the stochastic gradients, as a share of the length of the first corrective gradient."""


@dataclass(frozen=True)
class Descent:
    """The corrective loss of many problems on the way, each as a share of its first value."""

    way: str
    losses: Tensor  # (problems, steps + 1)

    @property
    def mean(self) -> Tensor:
        """Over the problems, (steps + 1,)."""
        return self.losses.mean(dim=0)

    @property
    def rising(self) -> float:
        """Share of all iterations in which the loss of a problem does not fall."""
        return float((self.losses.diff(dim=1) >= 0).double().mean())

    @property
    def rising_in_the_mean(self) -> float:
        """Share of the iterations in which the mean over problems does not fall."""
        return float((self.mean.diff() >= 0).double().mean())

    @property
    def longest_rise(self) -> int:
        """Most iterations in a row in which the loss of a problem did not fall: the lag."""
        return max(longest(flags) for flags in (self.losses.diff(dim=1) >= 0).tolist())


def longest(flags: Sequence[bool]) -> int:
    """Length of the longest run of true flags."""
    return max((len(list(run)) for flag, run in itertools.groupby(flags) if flag), default=0)


class Problems:
    """Random quadratics, each with its smoothness, and where the task wants to go."""

    def __init__(self, count: int) -> None:
        self.random = torch.Generator().manual_seed(0)
        factor = self.normal(count, SIZE, SIZE)
        self.hessian = factor @ factor.mT / SIZE + 0.1 * torch.eye(SIZE, dtype=torch.float64)
        self.smoothness = torch.linalg.eigvalsh(self.hessian)[:, -1:]  # (count, 1)
        self.target, self.start = self.normal(count, SIZE), self.normal(count, SIZE)

    def normal(self, *shape: int) -> Tensor:
        """Noise of that shape."""
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    def gradient(self, theta: Tensor) -> Tensor:
        """Of the corrective loss, (count, SIZE)."""
        return torch.einsum("nij,nj->ni", self.hessian, theta)

    def loss(self, theta: Tensor) -> Tensor:
        """The corrective loss, (count,)."""
        return 0.5 * (theta * self.gradient(theta)).sum(dim=1)


@dataclass(frozen=True)
class Way:
    """How to step."""

    name: str
    make: Callable[[Tensor], torch.optim.Optimizer]
    share: float | None
    """Of the rate that the theorem allows, which enters the gradient; None where the optimizer has its own."""
    noise: float = 0.0
    falls: bool = False


WAYS = (
    Way("gradient descent", lambda theta: torch.optim.SGD([theta], lr=1.0), 0.5),
    Way("SGD, falling rate", lambda theta: torch.optim.SGD([theta], lr=1.0), 0.5, noise=NOISE, falls=True),
    Way("momentum 0.9", lambda theta: torch.optim.SGD([theta], lr=1.0, momentum=0.9), 0.05),
    Way("Adam", lambda theta: torch.optim.Adam([theta], lr=0.01), None),
)


def descents(count: int, steps: int) -> list[Descent]:
    """Every way to step, on the same problems."""
    return [descend(way, count, steps) for way in WAYS]


def descend(way: Way, count: int, steps: int) -> Descent:
    """Step `count` problems side by side: all that an optimizer does here it does to every number by itself."""
    problems = Problems(count)
    theta = problems.start.clone().requires_grad_()
    optimizer = way.make(theta)
    bound = 2 * (1 - ALPHA) / (problems.smoothness * (1 + ALPHA) ** 2)  # (count, 1)
    rate = torch.ones_like(bound) if way.share is None else way.share * bound
    noise = way.noise * problems.gradient(problems.start).norm(dim=1, keepdim=True) / math.sqrt(SIZE)
    losses = [problems.loss(problems.start)]
    for step in range(steps):
        now = rate / (1 + step / 20) if way.falls else rate
        corrective = problems.gradient(theta.detach()) + noise * problems.normal(count, SIZE)
        _update(optimizer, theta, now * corrective)
        task = theta.detach() - problems.target + noise * problems.normal(count, SIZE)
        lengths = task.norm(dim=1, keepdim=True), corrective.norm(dim=1, keepdim=True)
        rule = task_scale(*lengths, torch.ones_like(bound), alpha=ALPHA, tau=1.0, floor=1e-3)  # δ = τ: violated
        _update(optimizer, theta, now * rule.scale * task)
        losses.append(problems.loss(theta.detach()))
    path = torch.stack(losses, dim=1)
    return Descent(way.name, path / path[:, :1])


def _update(optimizer: torch.optim.Optimizer, theta: Tensor, gradient: Tensor) -> None:
    theta.grad = gradient
    optimizer.step()
