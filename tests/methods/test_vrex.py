"""V-REx against risks that are summed image by image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.data.batches import Batch


def variance(features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
    """The population variance of the environments' mean losses."""
    losses: dict[int, list[Tensor]] = {}
    for row, label, environment in zip(logits, batch.label.tolist(), batch.environment.tolist(), strict=True):
        losses.setdefault(environment, []).append(torch.log(torch.exp(row).sum()) - row[label])
    risks = [sum(each) / len(each) for each in losses.values()]
    mean = sum(risks) / len(risks)
    return torch.as_tensor(sum((risk - mean) ** 2 for risk in risks) / len(risks))


def test_against_the_naive_form(descends: Any) -> None:
    assert min(descends("vrex", variance, weight=3.0, anneal=0)) > 0


def test_a_pinned_value(toy: Any) -> None:
    """Risks ln 2 and ln 4/3: their variance is (ln 3/2 / 2)²."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    image = torch.tensor([[0.0, 0.0], [0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64)
    label = torch.tensor([0, 1, 0])
    batch = Batch(image, label, label, torch.tensor([0, 0, 1]), label)
    values = toy.method("vrex", model, options={"anneal": 0}).step(batch)
    assert values["penalty"].item() == pytest.approx(math.log(1.5) ** 2 / 4, abs=1e-14)
    assert values["task_loss"].item() == pytest.approx((2 * math.log(2) + math.log(4 / 3)) / 3, abs=1e-14)
