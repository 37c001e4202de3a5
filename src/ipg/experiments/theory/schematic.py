"""The method in model space: a real run of a network with two parameters, one on the shortcut, one on the cause.

    o = θ₁ s + θ₂ c        label = sign of c, s agrees with it in training        pairs: (s, c) and (−s, c)

The rationale of an image is (θ₁ s, θ₂ c), so the correction pulls θ₁ to 0 and keeps classes apart by θ₂, while the task
wants both. Plain gradient descent, so that every step is the gradient of its update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.guidance import Guidance, Pairs

__all__ = ["Schematic", "run_schematic", "task_loss_surface"]

IMAGES = 40
START = (1.23, 0.68)
RATE = 0.12
STEPS = 6


@dataclass(frozen=True)
class Step:
    """One iteration: three points (θ₁, θ₂), before, corrected and after, and what decided."""

    before: tuple[float, float]
    corrected: tuple[float, float]
    after: tuple[float, float]
    violated: bool
    disagreement: float


@dataclass(frozen=True)
class Schematic:
    """A run."""

    alpha: float
    tau: float
    steps: tuple[Step, ...]


class TwoParameters(nn.Module):
    """A linear head with one logit on the features (s, c)."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        self.head.weight.data = torch.tensor([START], dtype=torch.float64)

    def forward(self, images: Tensor) -> Tensor:
        """The logit, (B, 1)."""
        logit: Tensor = self.head(images)
        return logit


def _data() -> tuple[Tensor, Tensor]:
    """Images (s, c) and their labels; s agrees with the label in nine of ten."""
    random = torch.Generator().manual_seed(0)
    label = torch.arange(IMAGES) % 2
    sign = 2.0 * label.double() - 1
    cause = sign * torch.linspace(0.4, 1.6, IMAGES, dtype=torch.float64)[torch.randperm(IMAGES, generator=random)]
    agrees = torch.where(torch.arange(IMAGES) % 10 == 0, -1.0, 1.0)
    return torch.stack([sign * agrees, cause], dim=1), label


def run_schematic(alpha: float, tau: float) -> Schematic:
    """Guide the two parameters and note every update."""
    model = TwoParameters()
    images, label = _data()
    pairs = Pairs(images, images * torch.tensor([-1.0, 1.0]), label)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guide = Guidance(model, optimizer, alpha=alpha, tau=tau, margin=1.0)
    steps = []
    for _ in range(STEPS):
        before = _point(model)
        optimizer.zero_grad()
        correction = guide.correct(pairs)
        corrected = _point(model)
        loss = _loss(model, images, label)
        loss.backward()  # type: ignore[no-untyped-call]
        told = guide.rescale(correction, loss.detach()).numbers()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(Step(before, corrected, _point(model), bool(told["violated"]), told["disagreement"]))
    guide.close()
    return Schematic(alpha, tau, tuple(steps))


def task_loss_surface(first: Tensor, second: Tensor) -> Tensor:
    """The task loss at every pair of parameters, (len(second), len(first)): what the task alone would descend."""
    images, label = _data()
    grid = torch.stack(torch.meshgrid(first, second, indexing="xy"), dim=-1)  # (n2, n1, 2)
    logits = torch.einsum("abk,nk->abn", grid.double(), images)
    sign = 2.0 * label.double() - 1
    return F.softplus(-sign * logits).mean(dim=-1)


def _loss(model: nn.Module, images: Tensor, label: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(images)[:, 0], label.double())


def _point(model: TwoParameters) -> tuple[float, float]:
    one, two = model.head.weight.detach()[0].tolist()
    return one, two
