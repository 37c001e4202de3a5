"""RIDG against a bank that is kept class by class, every rationale built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.data.batches import Batch


class Bank:
    """The authors' algorithm with loops over classes, images and outputs."""

    def __init__(self, momentum: float) -> None:
        self.momentum, self.bank = momentum, dict[int, Tensor]()

    def __call__(self, features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for label in sorted(set(batch.label.tolist())):
            rows = [z for z, other in zip(features, batch.label.tolist(), strict=True) if other == label]
            rationales = [torch.stack([w * z for w in head.weight]) for z in rows]  # (K, D) each
            mean = (sum(rationales) / len(rationales)).detach()  # type: ignore[union-attr]
            old = self.bank.get(label)
            self.bank[label] = mean if old is None else (1 - self.momentum) * old + self.momentum * mean
            distances = [((r[k] - self.bank[label][k]) ** 2).sum() for r in rationales for k in range(len(r))]
            total = total + sum(distances) / len(distances)
        return total


@pytest.mark.parametrize("momentum", [0.001, 0.4])
def test_against_the_naive_form(momentum: float, descends: Any) -> None:
    assert min(descends("ridg", Bank(momentum), weight=2.0, momentum=momentum)) > 1e-4


def test_pinned_values(toy: Any) -> None:
    """With W = 1 the bank of class 0 begins at 2 and goes on to 0.75 · 2 + 0.25 · 4; class 1 is seen once."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    options = {"weight": 1.0, "momentum": 0.25}
    method = toy.method("ridg", model, rate=0.0, options=options)
    penalties = []
    for rows, label in [([[1, 0], [3, 0], [0, 9]], [0, 0, 1]), ([[4, 0]], [0])]:
        labels = torch.tensor(label)
        batch = Batch(torch.tensor(rows, dtype=torch.float64), labels, labels, labels, labels)
        penalties.append(method.step(batch)["penalty"].item())
    assert penalties == pytest.approx([(1 + 1) / 4, (4 - 2.5) ** 2 / 2], abs=1e-14)
    bank = method.state_dict()["bank"]
    assert bank.tolist() == [[[2.5, 0], [0, 0]], [[0, 0], [0, 9]]]


def test_a_single_logit_is_that_of_the_second_of_two_classes(toy: Any) -> None:
    """The network gives (0, o): the first class's rationale is 0 throughout."""
    single, twin = OneLogit(), nn.Linear(2, 2).double()
    with torch.no_grad():
        twin.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, -1.0]]))
        twin.bias.zero_()
    found = []
    for model in (single, twin):
        method = toy.method("ridg", model, rate=0.0, options={"weight": 1.0, "momentum": 0.25})
        penalties = []
        for number in range(2):
            image = torch.arange(6, dtype=torch.float64).view(3, 2) ** (number + 1)
            label = torch.tensor([0, 1, 1])
            penalties.append(method.step(Batch(image, label, label, label, label))["penalty"].item())
        found.append((penalties, single.head.weight.grad if model is single else twin.weight.grad[1:]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert min(found[0][0]) > 0
    torch.testing.assert_close(found[0][1], found[1][1])


class OneLogit(nn.Module):
    """Two classes by one logit, as the networks of the rivals' protocols do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1).double()
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[2.0, -1.0]]))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(self.head(x), (1, 0))


def test_no_gradient_passes_through_the_bank(toy: Any) -> None:
    method = toy.method("ridg", toy.network())
    method.step(toy.batch(0))
    assert not method.kept["bank"].requires_grad
    assert method.kept["seen"].tolist() == [True, True, True]
