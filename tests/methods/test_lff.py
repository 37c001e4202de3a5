"""Learning from Failure against its algorithm written out in loops, with two networks and plain numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class
from ipg.models import build_model


def part(toy: Any, number: int, *rows: int) -> Batch:
    """Rows of the toy's table with images of their own."""
    row = torch.tensor(rows)
    label = toy.table().label[row]
    image = toy.batch(number, n=len(row)).image
    return Batch(image, label, label, torch.zeros_like(label), row)


BATCHES = [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (0, 2, 4, 6, 8, 10), (1, 0, 11)]


@pytest.mark.parametrize("options", [{}, {"amplification": 0.4, "memory": 0.9}])
def test_against_loops(toy: Any, options: dict[str, float]) -> None:
    model = toy.network()
    method = toy.method("lff", model, options=options)
    debiased, biased = copy.deepcopy(model), copy.deepcopy(method.biased.model)
    q, keep = options.get("amplification", 0.7), options.get("memory", 0.7)
    remembered: list[dict[int, float]] = [{}, {}]
    labels = toy.table().label.tolist()
    for number, rows in enumerate(BATCHES):
        batch = part(toy, number, *rows)
        values = method.step(batch)
        losses: list[list[torch.Tensor]] = []
        for network, memory in zip((biased, debiased), remembered, strict=True):
            logits = network(batch.image)
            each = [torch.log(torch.exp(o).sum()) - o[y] for o, y in zip(logits, batch.label.tolist(), strict=True)]
            for row, loss in zip(rows, each, strict=True):
                new = loss.item()
                memory[row] = keep * memory[row] + (1 - keep) * new if row in memory else new
            losses.append(each)
        easy = hard = torch.zeros((), dtype=torch.float64)
        for i, row in enumerate(rows):
            largest = [max(v for r, v in memory.items() if labels[r] == labels[row]) for memory in remembered]
            b, d = (memory[row] / most for memory, most in zip(remembered, largest, strict=True))
            easy = easy + q * math.exp(-losses[0][i].item()) ** q * losses[0][i] / len(rows)
            hard = hard + b / (b + d + 1e-8) * losses[1][i] / len(rows)
        for network, loss in ((biased, easy), (debiased, hard)):
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
        assert values["task_loss"].item() == pytest.approx(hard.item(), abs=1e-12)
    for one, other in ((model, debiased), (method.biased.model, biased)):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_weights_by_hand(toy: Any) -> None:
    """Rows 0 and 3 have one label. Biased losses 1 and 4, debiased 2 and 2: relative 1/4 and 1, 1 and 1."""
    method = toy.method("lff", toy.network())
    batch = part(toy, 0, 0, 3)
    weight = method._weight(torch.tensor([[1.0, 4.0], [2.0, 2.0]], dtype=torch.float64), batch)
    assert weight.tolist() == pytest.approx([0.2, 0.5], abs=1e-7)
    # again, with biased losses of 11 and 4: 0.7 · 1 + 0.3 · 11 = 4, as large as the other
    weight = method._weight(torch.tensor([[11.0, 4.0], [2.0, 2.0]], dtype=torch.float64), batch)
    assert weight.tolist() == pytest.approx([0.5, 0.5], abs=1e-7)
    assert method.memory[:, [0, 3]].tolist() == [[pytest.approx(4), pytest.approx(4)], [2.0, 2.0]]
    assert method.seen.nonzero().flatten().tolist() == [0, 3]


def test_losses_of_zero_have_a_weight(toy: Any) -> None:
    weight = toy.method("lff", toy.network())._weight(torch.zeros(2, 2, dtype=torch.float64), part(toy, 0, 0, 3))
    assert weight.tolist() == [0.0, 0.0]


def test_two_equal_networks_make_half_a_step_of_plain_training(toy: Any) -> None:
    """Then every weight is 1/2, up to the 1e-8 below the line."""
    model, plain = toy.network(), toy.network()
    method = toy.method("lff", model, rate=0.2)
    method.biased.model.load_state_dict(model.state_dict())
    batch = part(toy, 0, *range(12))
    values = method.step(batch)
    toy.method("erm", plain, rate=0.1).step(batch)
    assert values["weight"].item() == pytest.approx(0.5, abs=1e-6)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=0)


def test_the_second_network_is_drawn_from_the_seed_alone(toy: Any) -> None:
    model = toy.network()

    def weights(**settings: Any) -> torch.Tensor:
        method = toy.method("lff", model, **settings)
        return torch.cat([parameter.detach().flatten() for parameter in method.biased.model.parameters()])

    before = torch.get_rng_state()
    first = weights()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(weights(), first)
    assert not torch.equal(weights(seed=1), first)
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert not (first == own).any()


def test_a_pretrained_second_network_keeps_all_but_its_head(toy: Any) -> None:
    model = toy.network()
    second = toy.method("lff", model, weights="pretrained").biased.model
    assert torch.equal(second[0].weight, model[0].weight)
    assert second[0].weight.data_ptr() != model[0].weight.data_ptr()
    assert not torch.equal(second[2].weight, model[2].weight)


@pytest.mark.parametrize(
    ("settings", "kept"), [({"batch_norm": "eval"}, True), ({"weights": "pretrained"}, True), ({}, False)]
)
def test_both_networks_keep_their_statistics_or_neither_does(toy: Any, settings: dict[str, str], kept: bool) -> None:
    """As `batch_norm` says; for a network that starts from weights `auto` is `eval`."""
    model = nn.Sequential(toy.network()[0], nn.BatchNorm1d(5).double(), nn.Linear(5, 3).double())
    method = toy.method("lff", model, **settings)
    second = method.biased.model
    method.step(part(toy, 0, *range(12)))
    assert second.training
    assert torch.equal(second[1].running_mean, torch.zeros(5, dtype=torch.float64)) is kept


def test_the_second_optimizer_follows_the_rate(toy: Any) -> None:
    model = toy.network()
    method = toy.method("lff", model, rate=0.5)
    method.setup.optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(method.biased.model.state_dict())
    method.step(part(toy, 0, *range(12)))
    assert all(torch.equal(value, before[name]) for name, value in method.biased.model.state_dict().items())


def test_what_it_cannot_do_without(toy: Any) -> None:
    model = toy.network()
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig(method="lff"))
    for changed in (replace(setup, table=toy.table()), replace(setup, make_optimizer=lambda _: setup.optimizer)):
        with pytest.raises(ValueError, match="its Setup needs make_optimizer and table"):
            method_class("lff")(changed)


def test_several_processes_are_refused(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipg.methods.lff.find_peers", lambda *_: SimpleNamespace(size=2))
    with pytest.raises(ValueError, match="lff remembers the loss of every image in one process: train it without"):
        toy.method("lff", toy.network())


def test_the_run_keeps_the_debiased_network(make_table: Callable[..., ImageTable], one_epoch: Any) -> None:
    outcome = one_epoch("lff", epochs=2, seed=3)
    train = outcome.rows[-1]["train"]
    assert 0 < train["weight"] < 1
    assert math.isfinite(train["biased_loss"])
    names = build_model("small_cnn", channels=2, classes=2).state_dict().keys()
    assert outcome.model.state_dict().keys() == names
    again = one_epoch("lff", epochs=2, seed=3)
    for one, other in zip(outcome.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
