"""GroupDRO against numbers by hand and against its algorithm written out in loops."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ipg.config import RunConfig
from ipg.data.batches import Batch, Batches
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class


@pytest.fixture
def uneven(toy: Any) -> ImageTable:
    """Groups 0 to 4 with 2, 2, 4, 3 and 1 images and group 5 with none."""
    group = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4])
    return replace(toy.table(), label=group // 2, attribute=group % 2)


def build(toy: Any, table: ImageTable, model: torch.nn.Module | None = None, **options: float) -> Any:
    return toy.method("groupdro", model or toy.mirror(), table=table, options=options)


def test_weights_and_loss_by_hand(toy: Any, uneven: ImageTable) -> None:
    """Two images of group 0 at a loss of ln 2, one of group 1 at ln 4: with a step size of 1/ln 2, exponents 1, 2."""
    image = torch.tensor([[0.0, 0.0], [0.0, 0.0], [-math.log(3), 0.0]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1])
    batch = Batch(image, torch.zeros_like(group), group, torch.zeros_like(group), torch.tensor([0, 1, 2]))
    method = build(toy, uneven, step_size=1 / math.log(2))
    values = method.step(batch)
    total = math.e + math.e**2 + 3  # groups 2, 3 and 4 are not in the batch, group 5 is in no batch
    assert method.weights.tolist() == pytest.approx([w / total for w in (math.e, math.e**2, 1, 1, 1, 0)], abs=1e-12)
    assert values["task_loss"].item() == pytest.approx(math.log(2) * (math.e + 2 * math.e**2) / total, abs=1e-12)
    assert values["task_loss"].item() == pytest.approx(0.9252509, abs=1e-7)
    assert values["largest_weight"].item() == pytest.approx(math.e**2 / total, abs=1e-12)


def test_small_groups_are_favoured_by_the_adjustment(toy: Any, uneven: ImageTable) -> None:
    method = build(toy, uneven, step_size=0.5, adjustment=2.0)
    batch = toy.batch(0)._replace(image=torch.zeros(9, 2, dtype=torch.float64), group=torch.full((9,), 2))
    method.step(batch._replace(label=torch.zeros_like(batch.label)))
    counts = [2, 2, 4, 3, 1]
    scores = [math.exp(0.5 * ((math.log(2) if g == 2 else 0) + 2 / math.sqrt(n))) for g, n in enumerate(counts)]
    assert method.weights.tolist() == pytest.approx([*(score / sum(scores) for score in scores), 0.0], abs=1e-12)


def test_against_loops(toy: Any) -> None:
    model = toy.network()
    plain = copy.deepcopy(model)
    method = build(toy, toy.table(), model, step_size=0.3)
    weights = [1 / 6] * 6
    for number in range(5):
        batch = toy.batch(number)
        batch = batch._replace(group=2 * batch.label + torch.arange(9) % 2)
        method.step(batch)
        losses: list[list[torch.Tensor]] = [[] for _ in weights]
        for x, y, g in zip(batch.image, batch.label.tolist(), batch.group.tolist(), strict=True):
            logits = plain(x)
            losses[g].append(torch.log(torch.exp(logits).sum()) - logits[y])
        means = [sum(part) / len(part) if part else torch.zeros(()) for part in losses]
        weights = [w * math.exp(0.3 * mean.item()) for w, mean in zip(weights, means, strict=True)]
        weights = [w / sum(weights) for w in weights]
        loss = sum(w * mean for w, mean in zip(weights, means, strict=True))
        gradients = torch.autograd.grad(loss, list(plain.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)
    assert method.weights.tolist() == pytest.approx(weights, abs=1e-12)


def test_weights_that_stand_still_on_balanced_batches_are_plain_training(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    method, erm = build(toy, toy.table(), model, step_size=0), toy.method("erm", plain)
    for number in range(4):
        batch = toy.batch(number, n=12)._replace(group=torch.arange(12) % 6)
        one, other = method.step(batch), erm.step(batch)
        assert one["task_loss"].item() == pytest.approx(other["task_loss"].item(), abs=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_groups_without_images_stay_out(make_table: Callable[..., ImageTable], one_epoch: Any) -> None:
    """As in Waterbirds-100: the attribute is the label in every training image."""
    table = make_table(agreement=1.0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup = Setup(model, optimizer, torch.nn.CrossEntropyLoss(), RunConfig(method="groupdro"), table=table)
    method: Any = method_class("groupdro")(setup)
    assert method.weights.tolist() == [0.5, 0.0, 0.0, 0.5]
    batches = Batches(table, 32, seed=0, sampling=method.sampling(table, method.options, seed=0))
    for rows in batches.rows(0):
        method.step(batches.take(rows))
    assert method.weights[[1, 2]].tolist() == [0.0, 0.0]
    assert method.weights.sum().item() == pytest.approx(1, abs=1e-6)
    assert math.isfinite(one_epoch("groupdro", table=table).rows[0]["train"]["task_loss"])


def test_batches_are_drawn_as_those_of_rwg(make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    one, other = (method_class(name).sampling(table, None, seed=0) for name in ("groupdro", "rwg"))
    assert one.rows is None
    assert torch.equal(one.weights, other.weights)  # type: ignore[arg-type]


def test_the_weights_are_the_state(toy: Any) -> None:
    method = build(toy, toy.table(), toy.network())
    method.step(toy.batch(0))
    state = method.state_dict()
    other = build(toy, toy.table(), toy.network())
    place = other.weights.data_ptr()
    other.load_state_dict(state)
    assert torch.equal(other.weights, method.weights)
    assert other.weights.data_ptr() == place  # captured graphs read it there
    method.step(toy.batch(1))
    assert torch.equal(state["weights"], other.weights)  # a state does not move on
