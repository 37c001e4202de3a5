"""meta-IRM: its loss by hand, its second-order step against one written out, and where it is plain training."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.batches import Batch


def across(toy: Any, number: int, of: tuple[int, ...] = (7, 3, 4), *, n: int = 12) -> Batch:
    """The toy's batch, its images from the environments `of` in turn."""
    batch: Batch = toy.batch(number, n=n)
    return batch._replace(environment=torch.tensor(of)[torch.arange(n) % len(of)])


def meta(toy: Any, model: nn.Module, known: tuple[int, ...] = (7, 3, 4), **options: Any) -> Any:
    table = replace(toy.table(), environment=torch.tensor(known)[torch.arange(12) % len(known)])
    return toy.method("meta_irm", model, table=table, options=options)


def values(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_hand(toy: Any, label: list[int], **options: Any) -> dict[str, float]:
    """What a step reports of images that are 0, so that logits are the bias, at first (0, 0); two of each environment.

    The gradient of an image's loss by the bias is (−½, ½) if its label is 0: a step of rate ln 3 on such images makes
    the logits (½ ln 3, −½ ln 3), and losses ln 4/3 for label 0 and ln 4 for label 1.
    """
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.bias.zero_()
    labels = torch.tensor(label)
    batch = Batch(torch.zeros(4, 2).double(), labels, labels, torch.tensor([3, 3, 4, 4]), labels)
    reported = meta(toy, model, (3, 4), inner_rate=math.log(3), **options).step(batch)
    return {name: value.item() for name, value in reported.items()}


def test_the_loss_by_hand(toy: Any) -> None:
    apart = by_hand(toy, [0, 0, 1, 1])
    assert apart["task_loss"] == pytest.approx(math.log(4), abs=1e-14)
    assert apart["spread"] == pytest.approx(0.0, abs=1e-14)
    alike = by_hand(toy, [0, 0, 1, 1], outer="same")
    assert alike["task_loss"] == pytest.approx(math.log(4 / 3), abs=1e-14)
    # the second environment has both labels, so no inner gradient: the first keeps ln 2, the second has both losses
    mixed = by_hand(toy, [0, 0, 0, 1])
    first, second = math.log(2), 0.5 * (math.log(4 / 3) + math.log(4))
    assert mixed["task_loss"] == pytest.approx((first + second) / 2, abs=1e-14)
    assert mixed["spread"] == pytest.approx(abs(first - second) / 2, abs=1e-14)


def naive(model: nn.Sequential, batch: Batch, *, rate: float, weight: float, order: str, outer: str) -> Tensor:
    """The loss with one list of parameters for each environment and a loop over the pairs."""
    hidden, _, head = model
    start = [hidden.weight, hidden.bias, head.weight, head.bias]

    def risk(parameters: list[Tensor], environment: int) -> Tensor:
        rows = [i for i, other in enumerate(batch.environment.tolist()) if other == environment]
        first = torch.tanh(batch.image[rows] @ parameters[0].T + parameters[1])
        return F.cross_entropy(first @ parameters[2].T + parameters[3], batch.label[rows])

    there = sorted(set(batch.environment.tolist()))
    losses = []
    for inside, outside in product(there, there):
        if (inside == outside) != (outer == "same"):
            continue
        slopes = torch.autograd.grad(risk(start, inside), start, create_graph=True)
        slopes = slopes if order == "second" else tuple(slope.detach() for slope in slopes)
        losses.append(risk([p - rate * g for p, g in zip(start, slopes, strict=True)], outside))
    found = torch.stack(losses)
    return found.mean() + weight * found.std(correction=0)


@pytest.mark.parametrize("order", ["second", "first"])
@pytest.mark.parametrize("outer", ["other", "same"])
def test_against_the_loss_written_out(toy: Any, order: str, outer: str) -> None:
    model, twin = toy.network(), toy.network()
    method = meta(toy, model, inner_rate=0.3, weight=2.0, order=order, outer=outer)
    parameters = list(twin.parameters())
    for number, of in enumerate([(7, 3, 4), (3, 4), (4, 3, 3, 7)]):
        batch = across(toy, number, of)
        reported = method.step(batch)
        loss = naive(twin, batch, rate=0.3, weight=2.0, order=order, outer=outer)
        assert reported["task_loss"].item() + 2 * reported["spread"].item() == pytest.approx(loss.item(), abs=1e-11)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
    torch.testing.assert_close(values(model), values(twin), atol=1e-11, rtol=1e-9)


def test_both_orders_are_not_the_same(toy: Any) -> None:
    ends = []
    for order in ("second", "first"):
        model = toy.network()
        meta(toy, model, inner_rate=0.5, order=order).step(across(toy, 0))
        ends.append(values(model))
    assert (ends[0] - ends[1]).abs().max() > 1e-4


def test_without_an_inner_step_and_spread_it_is_plain_training(toy: Any) -> None:
    """Environments of equal size: the mean over pairs is then the mean over images."""
    model, plain = toy.network(), toy.network()
    method, erm = meta(toy, model, inner_rate=0, weight=0), toy.method("erm", plain)
    for number in range(4):
        one, other = method.step(across(toy, number)), erm.step(across(toy, number))
        assert one["task_loss"].item() == pytest.approx(other["task_loss"].item(), abs=1e-13)
    torch.testing.assert_close(values(model), values(plain), atol=1e-13, rtol=1e-12)


def test_a_batch_of_one_environment_makes_an_ordinary_step(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    batch = across(toy, 0, (3,))
    reported = meta(toy, model, inner_rate=0.5, weight=3).step(batch)
    toy.method("erm", plain).step(batch)
    assert reported["spread"].item() == 0
    torch.testing.assert_close(values(model), values(plain), atol=1e-13, rtol=1e-12)


def test_frozen_parameters_stay(toy: Any) -> None:
    model = toy.network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    method = toy.method("meta_irm", model, optimizer=optimizer)
    method.step(across(toy, 0, (0, 1)))
    assert set(method.parameters) == {"2.weight", "2.bias"}
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None


def test_one_environment_is_refused(toy: Any) -> None:
    with pytest.raises(ValueError, match="method 'meta_irm' needs training images of two environments or more"):
        meta(toy, toy.network(), (3,))


def test_several_processes_are_refused(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        size = 2

    monkeypatch.setattr("ipg.methods.base.find_peers", lambda model, group: Two())
    with pytest.raises(ValueError, match=r"method 'meta_irm' compares the images of whole batches.* in one process"):
        meta(toy, toy.network())


def test_no_step_across_environments_waits(toy: Any, no_waiting: Any) -> None:
    model = toy.network()
    method = toy.method("meta_irm", model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01, fused=True))
    batches = [across(toy, number, (0, 1)) for number in range(3)]
    before = next(model.parameters()).detach().clone()
    with no_waiting:  # which raises where one does
        for batch in batches:
            method.step(batch)
    assert not torch.equal(next(model.parameters()), before)
