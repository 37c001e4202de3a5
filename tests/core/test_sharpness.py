"""Guidance beside an optimizer that steps in two halves: sharpness-aware minimization, by the optimizer inside it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.guidance import Guidance

RATE, RADIUS, ALPHA = 0.05, 0.1, 0.2


class Sharp(torch.optim.Optimizer):
    """Foret et al., ICLR 2021, as it is usually written: it climbs, and steps by the gradient that it finds there."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(parameters, {"rho": RADIUS, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb."""
        every = [p for group in self.param_groups for p in group["params"]]
        length = torch.stack([p.grad.norm() for p in every]).norm()
        for parameter in every:
            self.state[parameter]["before"] = parameter.clone()
            parameter.add_(parameter.grad, alpha=float(RADIUS / length))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Step from where the climb began."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["before"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        """Both halves at once."""
        if closure is None:
            raise AssertionError("a closure is needed")


def flat(gradients: Any) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_the_optimizer_inside_is_guided(toys: ModuleType) -> None:
    """Both updates are those of Algorithm 1, the task's with the gradient from the top of the climb."""
    model, pairs, (x, y) = toys.mlp(), toys.pairs(), toys.batch()
    optimizer = Sharp(model.parameters(), torch.optim.SGD, lr=RATE)
    guide = Guidance(model, optimizer.base_optimizer, alpha=ALPHA)

    twin = toys.mlp()
    terms = Guidance(twin, torch.optim.SGD(twin.parameters(), lr=RATE)).terms(pairs)
    loss, own = terms.alignment + terms.uniformity, list(twin.parameters())
    first = [torch.zeros_like(p) if g is None else g for p, g in zip(own, slopes(loss, own), strict=True)]
    corrected = nn.utils.parameters_to_vector(own).detach() - RATE * flat(first)

    correction = guide.correct(pairs)
    torch.testing.assert_close(nn.utils.parameters_to_vector(model.parameters()).detach(), corrected)
    F.cross_entropy(model(x), y).backward()
    optimizer.first_step()
    F.cross_entropy(model(x), y).backward()
    guide.rescale(correction)
    optimizer.second_step()

    nn.utils.vector_to_parameters(corrected, own)
    below = flat(slopes(F.cross_entropy(twin(x), y), own))
    nn.utils.vector_to_parameters(corrected + RADIUS * below / below.norm(), own)
    above = flat(slopes(F.cross_entropy(twin(x), y), own))
    expected = corrected - RATE * ALPHA * flat(first).norm() * above / above.norm()
    torch.testing.assert_close(nn.utils.parameters_to_vector(model.parameters()).detach(), expected)


def slopes(loss: torch.Tensor, parameters: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def test_the_optimizer_around_says_itself_what_it_lacks(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, Sharp(model.parameters(), torch.optim.SGD, lr=RATE))
    with pytest.raises(AssertionError, match="a closure is needed"):
        guide.correct(toys.pairs())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert guide.iteration == 0
