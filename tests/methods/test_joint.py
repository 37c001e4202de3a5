"""Joint Optimization in all its readings, against gradient descent written out in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.data.batches import Batch
from ipg.guidance import Pairs

RATE = 0.1
MARGIN = 0.7
ORDERS = ["task_first", "alignment_first", "sum"]
LOSSES = ["alignment", "corrective"]


class Naive:
    """The network as a list of matrices, every rationale built, every sum a loop."""

    def __init__(self, model: nn.Sequential) -> None:
        self.parameters = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]

    def features(self, x: Tensor) -> Tensor:
        w, b = self.parameters[:2]
        return torch.tanh(w @ x + b)

    def task(self, batch: Batch) -> Tensor:
        w, b = self.parameters[2:]
        losses = []
        for x, y in zip(batch.image, batch.label.tolist(), strict=True):
            logits = w @ self.features(x) + b
            losses.append(-(logits[y] - torch.log(torch.exp(logits).sum())))
        return torch.stack(losses).sum() / len(losses)

    def pair(self, pairs: Pairs, loss: str) -> Tensor:
        weight = self.parameters[2]
        sides = [[torch.diag(self.features(x)) @ weight.T for x in side] for side in (pairs.first, pairs.second)]
        n = len(pairs)
        total = torch.zeros((), dtype=torch.float64)
        for one, other in zip(*sides, strict=True):
            total = total + ((one - other) ** 2).sum().sqrt() / n
        if loss == "alignment":
            return total
        for side in sides:
            for i in range(n):
                for j in range(n):
                    if pairs.label[i] != pairs.label[j]:
                        distance = ((side[i] - side[j]) ** 2).sum().sqrt()
                        if distance < MARGIN:
                            total = total + (MARGIN - distance) / (2 * n * n)
        return total

    def descend(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= RATE * gradient

    def step(self, order: str, loss: str, batch: Batch, pairs: Pairs | None) -> None:
        """`pairs` is None where no correction is due."""
        if order == "sum":
            total = self.task(batch)
            self.descend(total if pairs is None else total + self.pair(pairs, loss))
            return
        if order == "alignment_first" and pairs is not None:
            self.descend(self.pair(pairs, loss))
        self.descend(self.task(batch))
        if order == "task_first" and pairs is not None:
            self.descend(self.pair(pairs, loss))


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("order", ORDERS)
def test_against_the_naive_form(toy: Any, order: str, loss: str, every: int) -> None:
    model = toy.network()
    naive = Naive(model)
    options = {"order": order, "loss": loss}
    method = toy.method("joint", model, rate=RATE, margin=str(MARGIN), every=every, options=options)
    for number in range(6):
        method.step(toy.batch(number))
        pairs = toy.pairs(number // every) if number % every == 0 else None
        naive.step(order, loss, toy.batch(number), pairs)
    for one, other in zip(model.parameters(), naive.parameters, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_pairs_of_equal_members_leave_plain_training_bit_for_bit(toy: Any, drawn: Any, order: str, every: int) -> None:
    """The gradient of a distance of 0 is 0, and a step of gradient descent along it none."""
    ends = []
    for name, options in (("joint", {"order": order}), ("erm", {})):
        model = toy.network()
        method = toy.method(name, model, every=every, options=options, pairs_from=drawn(shift=0.0))
        for number in range(5):
            method.step(toy.batch(number))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*ends)


def test_the_readings_differ(toy: Any) -> None:
    ends = []
    for order in ORDERS:
        for loss in LOSSES:
            model = toy.network()
            method = toy.method("joint", model, options={"order": order, "loss": loss})
            for number in range(4):
                method.step(toy.batch(number))
            ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    for i, one in enumerate(ends):
        for other in ends[:i]:
            assert (one - other).abs().max() > 1e-4


def test_the_first_reading_is_the_default(toy: Any) -> None:
    ends = []
    for options in ({}, {"order": "task_first", "loss": "alignment"}):
        model = toy.network()
        toy.method("joint", model, options=options).step(toy.batch(0))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_step_reports(toy: Any, order: str) -> None:
    """The losses at the parameters at which their gradient was taken."""
    model = toy.network()
    naive = Naive(model)
    values = toy.method("joint", model, options={"order": order, "loss": "corrective"}).step(toy.batch(0))
    if order == "alignment_first":
        naive.descend(naive.pair(toy.pairs(0), "corrective"))
    assert values["task_loss"].item() == pytest.approx(naive.task(toy.batch(0)).item(), abs=1e-12)
    naive = Naive(toy.network())
    if order == "task_first":
        naive.descend(naive.task(toy.batch(0)))
    pair = naive.pair(toy.pairs(0), "corrective")
    assert (values["alignment"] + values["uniformity"]).item() == pytest.approx(pair.item(), abs=1e-12)
    assert values["uniformity"] > 0
    assert set(values) == {"task_loss", "alignment", "uniformity", "disagreement"}


@pytest.mark.parametrize("order", ORDERS)
def test_no_step_waits_for_the_device(toy: Any, no_waiting: Any, order: str) -> None:
    model = toy.network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    method = toy.method("joint", model, optimizer=optimizer, every=2, options={"order": order, "loss": "corrective"})
    batches = [toy.batch(number) for number in range(3)]
    with no_waiting:  # which raises where one does
        values = [method.step(batch) for batch in batches]
    assert values[-1]["uniformity"].item() > 0


@pytest.mark.parametrize("order", ORDERS)
def test_batch_norm_in_eval_mode_is_kept_from_the_first_batch_on(toy: Any, order: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double().train()
    method = toy.method("joint", model, batch_norm="eval", options={"order": order})
    for number in range(2):
        method.step(toy.batch(number))
    assert model[1].running_mean.abs().max() == 0
    assert model[1].num_batches_tracked == 0
    method = toy.method("joint", model.train(), batch_norm="train", options={"order": order})
    method.step(toy.batch(0))
    assert model[1].num_batches_tracked == 2  # the task batch and the pairs
