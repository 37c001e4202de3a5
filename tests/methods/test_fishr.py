"""Fishr against the gradient of every image by the head, taken one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.batches import Batch


def variances(features: Tensor, batch: Batch, head: nn.Linear) -> dict[int, Tensor]:
    """The population variance of the images' gradients, by environment."""
    gradients: dict[int, list[Tensor]] = {}
    for row, label, environment in zip(features, batch.label, batch.environment.tolist(), strict=True):
        loss = F.cross_entropy(head(row), label)
        found = torch.autograd.grad(loss, list(head.parameters()), create_graph=True)
        gradients.setdefault(environment, []).append(torch.cat([gradient.flatten() for gradient in found]))
    return {which: torch.stack(each).var(dim=0, correction=0) for which, each in gradients.items()}


def plain(features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
    """The sum over environments of squared distances to the mean."""
    found = torch.stack(list(variances(features, batch, head).values()))
    return (found - found.mean(dim=0)).square().sum()


class Averaged:
    """DomainBed's: moving averages, an average for each environment."""

    def __init__(self, share: float) -> None:
        self.share, self.old = share, dict[int, Tensor]()

    def __call__(self, features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
        found = []
        for which, variance in variances(features, batch, head).items():
            old = self.old.get(which, torch.zeros_like(variance).detach())
            new = self.share * old + (1 - self.share) * variance
            self.old[which] = new.detach()
            found.append(new / (1 - self.share))
        table = torch.stack(found)
        return torch.stack([(row - table.mean(dim=0)).pow(2).mean() for row in table]).mean()


def test_the_plain_form(descends: Any) -> None:
    assert min(descends("fishr", plain, weight=2.0, anneal=0, form="plain")) > 1e-6


@pytest.mark.parametrize("average", [0.0, 0.6, 0.95])
def test_the_averaged_form(average: float, descends: Any) -> None:
    penalty = Averaged(average)
    assert min(descends("fishr", penalty, weight=2.0, anneal=0, form="averaged", average=average)) > 1e-7


@pytest.mark.parametrize(("form", "expected"), [("plain", 1 / 16), ("averaged", 1 / 192)])
def test_pinned_values(form: str, expected: float, toy: Any) -> None:
    """Features of 0: only the biases' gradients, ∓1/2, vary: by 1/4 where labels differ, by 0 where they are one."""
    model = nn.Linear(2, 2).double()
    nn.init.zeros_(model.bias)
    label = torch.tensor([0, 1, 0, 0])
    batch = Batch(torch.zeros(4, 2, dtype=torch.float64), label, label, torch.tensor([0, 0, 1, 1]), label)
    values = toy.method("fishr", model, options={"anneal": 0, "form": form}).step(batch)
    assert values["penalty"].item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("form", ["plain", "averaged"])
def test_a_head_without_bias(form: str, toy: Any) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    batch = toy.batch(0)._replace(environment=torch.arange(9) % 2)
    expected = plain(model[:-1](batch.image), model(batch.image), batch, model[-1]).item()
    scale = 1.0 if form == "plain" else 1 / (2 * 15)
    values = toy.method("fishr", model, options={"form": form}).step(batch)
    assert values["penalty"].item() == pytest.approx(expected * scale, rel=1e-10)


def test_a_missing_environment_keeps_its_average(toy: Any) -> None:
    method = toy.method("fishr", toy.network())
    method.step(toy.batch(0)._replace(environment=torch.arange(9) % 2))
    before = method.state_dict()["variance"]
    method.step(toy.batch(1)._replace(environment=torch.zeros(9, dtype=torch.int64)))
    after = method.state_dict()["variance"]
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])
