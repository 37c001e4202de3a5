"""CGGD against gradient descent written out, and its constraint met, violated and impossible to push."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F

from ipg.data.batches import Batch
from ipg.guidance import Pairs


def alignment(model: nn.Sequential, pairs: Pairs) -> Tensor:
    """The mean distance of rationales, every one of them built."""
    weight = model[-1].weight
    distances = []
    for one, other in zip(model[:-1](pairs.first), model[:-1](pairs.second), strict=True):
        distances.append(((torch.diag(one) @ weight.T - torch.diag(other) @ weight.T) ** 2).sum().sqrt())
    return torch.stack(distances).mean()


def flat(gradients: Any, parameters: list[Tensor]) -> Tensor:
    filled = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    return torch.cat([each.flatten() for each in filled])


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("tolerance", [0.0, 0.3, 100.0])
def test_against_the_naive_form(toy: Any, every: int, tolerance: float) -> None:
    model, twin = toy.network(), toy.network()
    options = {"factor": 1.5, "tolerance": tolerance}
    method = toy.method("cggd", model, every=every, options=options)
    parameters = list(twin.parameters())
    for number in range(6):
        batch = toy.batch(number)
        reported = method.step(batch)
        task = flat(torch.autograd.grad(F.cross_entropy(twin(batch.image), batch.label), parameters), parameters)
        if number % every == 0:
            loss = alignment(twin, toy.pairs(number // every))
            push = flat(torch.autograd.grad(loss, parameters, allow_unused=True), parameters)
            assert reported["alignment"].item() == pytest.approx(loss.item(), abs=1e-12)
            assert reported["violated"].item() == (loss.item() > tolerance)
            if loss.item() > tolerance:
                task = task + 1.5 * task.norm() * push / push.norm()
        with torch.no_grad():
            start = 0
            for parameter in parameters:
                parameter -= 0.1 * task[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
    for one, other in zip(model.parameters(), parameters, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_a_pinned_value(toy: Any) -> None:
    """A task gradient of length √½ on the bias alone; the pairs differ in the second feature, whose weight is 1."""

    class One:
        def draw(self) -> Pairs:
            return Pairs(torch.tensor([[0.0, 2.0]]).double(), torch.zeros(1, 2).double(), torch.tensor([0]))

    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    label = torch.tensor([0])
    batch = Batch(torch.zeros(1, 2).double(), label, label, label, label)
    values = toy.method("cggd", model, pairs_from=One(), options={"factor": 1.5}).step(batch)
    assert values["alignment"].item() == pytest.approx(2.0, abs=1e-14)
    torch.testing.assert_close(model.bias.detach(), torch.tensor([0.05, -0.05]).double())
    expected = torch.tensor([[1.0, 0.0], [0.0, 1 - 0.1 * 1.5 * math.sqrt(0.5)]]).double()
    torch.testing.assert_close(model.weight.detach(), expected)


@pytest.mark.parametrize("options", [{"factor": 0.0}, {"tolerance": 1e6}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_without_a_push_it_is_plain_training_bit_for_bit(options: dict[str, float], kind: Any, toy: Any) -> None:
    ends = []
    for name, given in (("cggd", options), ("erm", {})):
        model = toy.network(dtype=torch.float32)
        optimizer = kind(model.parameters(), lr=0.01)
        method = toy.method(name, model, optimizer=optimizer, options=given, pairs_from=Single(toy))
        for number in range(4):
            method.step(toy.batch(number, dtype=torch.float32))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*ends)


class Single:
    """The toy's pairs in single precision; all of them aligned already if so told."""

    def __init__(self, toy: Any, **options: Any) -> None:
        self.toy, self.options = toy, options

    def draw(self) -> Pairs:
        pairs: Pairs = self.toy.pairs(0, dtype=torch.float32, **self.options)
        return pairs


def test_aligned_pairs_push_nowhere(toy: Any) -> None:
    """The gradient of the distance is 0 there, and has no direction."""
    model = toy.network(dtype=torch.float32)
    method = toy.method("cggd", model, options={"tolerance": 0.0}, pairs_from=Single(toy, shift=0.0))
    values = method.step(toy.batch(0, dtype=torch.float32))
    assert values["violated"].item() == 0.0
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_no_step_waits(toy: Any) -> None:
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        method = toy.method("cggd", model, optimizer=optimizer, every=2, table=object(), pairs_from=Single(toy))
        for number in range(3):
            values = method.step(toy.batch(number, dtype=torch.float32))
        with pytest.raises(DataDependentOutputException):
            values["violated"].item()


def test_training(one_epoch: Any) -> None:
    (row,) = one_epoch("cggd").rows
    assert math.isfinite(row["train"]["alignment"])
    assert 0 <= row["train"]["violated"] <= 1
