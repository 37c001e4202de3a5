"""The supervised contrastive loss on pairs against numbers by hand and against its sum in loops."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.methods.pair_contrastive import contrastive


def naive(features: Tensor, label: list[int], temperature: float) -> Tensor:
    """Equation 2 of the paper, every sum a loop."""
    z = [row / (row**2).sum().sqrt() for row in features]
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        positives = [p for p in others if label[p] == label[i]]
        below = sum(torch.exp((z[i] * z[a]).sum() / temperature) for a in others)
        for p in positives:
            total = total - torch.log(torch.exp((z[i] * z[p]).sum() / temperature) / below) / len(positives)
    return total / len(z)


def test_two_pairs_at_right_angles() -> None:
    """Each member: −log[e^{1/T} / (e^{1/T} + 2)]; lengths do not matter."""
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.5]], dtype=torch.float64)
    label = torch.tensor([0, 1, 0, 1])
    for temperature in (1.0, 0.5):
        loss = contrastive(features, label, temperature=temperature)
        assert loss.item() == pytest.approx(math.log(1 + 2 * math.exp(-1 / temperature)), abs=1e-12)
    assert contrastive(features, label, temperature=1.0).item() == pytest.approx(0.5514447, abs=1e-7)


def test_features_on_one_point() -> None:
    """Every share is 1/3, whatever the labels."""
    features = torch.ones(4, 3, dtype=torch.float64)
    for label in ([0, 0, 0, 0], [0, 1, 0, 1]):
        loss = contrastive(features, torch.tensor(label), temperature=0.1)
        assert loss.item() == pytest.approx(math.log(3), abs=1e-12)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_against_loops(temperature: float) -> None:
    features = torch.randn(10, 4, dtype=torch.float64, requires_grad=True)
    label = [0, 1, 2, 0, 1, 0, 1, 2, 0, 1]
    loss = contrastive(features, torch.tensor(label), temperature=temperature)
    expected = naive(features, label, temperature)
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=1e-12)
    (one,), (other,) = (torch.autograd.grad(value, features) for value in (loss, expected))
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_a_step_is_one_on_the_sum(toy: Any) -> None:
    model = toy.network()
    plain = copy.deepcopy(model)
    method = toy.method("pair_contrastive", model, options={"weight": 3, "temperature": 0.4})
    for number in range(3):
        batch, pairs = toy.batch(number), toy.pairs(number)
        values = method.step(batch)
        task = torch.nn.functional.cross_entropy(plain(batch.image), batch.label)
        features = plain[:2](torch.cat([pairs.first, pairs.second]))
        pair = naive(features, pairs.label.tolist() * 2, 0.4)
        gradients = torch.autograd.grad(task + 3 * pair, list(plain.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        assert values["task_loss"].item() == pytest.approx(task.item(), abs=1e-12)
        assert values["contrastive"].item() == pytest.approx(pair.item(), abs=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_without_a_weight_it_is_plain_training(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    method, erm = toy.method("pair_contrastive", model, options={"weight": 0}), toy.method("erm", plain)
    for number in range(4):
        method.step(toy.batch(number))
        erm.step(toy.batch(number))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_pairs_are_drawn_at_every_step(toy: Any, drawn: Any) -> None:
    source = drawn()
    method = toy.method("pair_contrastive", toy.network(), every=3, pairs_from=source)
    for number in range(4):
        assert method.due
        method.step(toy.batch(number))
    assert source.count == 4


def test_an_epoch_brings_the_features_of_a_label_together(one_epoch: Any) -> None:
    first = one_epoch("pair_contrastive", options={"weight": 10}).rows[0]["train"]["contrastive"]
    assert one_epoch("pair_contrastive", epochs=8, options={"weight": 10}).rows[-1]["train"]["contrastive"] < first
