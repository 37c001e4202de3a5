"""IRM against the derivative by a dummy scale, taken by automatic differentiation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.batches import Batch


def slope(logits: Tensor, label: Tensor) -> Tensor:
    """The derivative of the mean loss by a factor of the logits, at 1."""
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    (found,) = torch.autograd.grad(F.cross_entropy(scale * logits, label), scale, create_graph=True)
    return found


def squared(features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
    """IRMv1 as Arjovsky et al. write it."""
    each = []
    for environment in sorted(set(batch.environment.tolist())):
        rows = [i for i, other in enumerate(batch.environment.tolist()) if other == environment]
        each.append(slope(logits[rows], batch.label[rows]) ** 2)
    return torch.stack(each).mean()


def split(features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
    """The product over the even and the odd images of each environment, as DomainBed has it."""
    each = []
    for environment in sorted(set(batch.environment.tolist())):
        rows = [i for i, other in enumerate(batch.environment.tolist()) if other == environment]
        even, odd = rows[::2], rows[1::2]
        each.append(slope(logits[even], batch.label[even]) * slope(logits[odd], batch.label[odd]))
    return torch.stack(each).mean()


@pytest.mark.parametrize("penalty", [squared, split])
def test_against_the_dummy_scale(penalty: Any, descends: Any) -> None:
    found = descends("irm", penalty, weight=3.0, anneal=0, penalty=penalty.__name__)
    assert min(map(abs, found)) > 1e-6


def step(toy: Any, label: list[int], environment: list[int], form: str) -> float:
    """The penalty of images with logits (ln 3, 0), probabilities 3/4 and 1/4."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    image = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64).repeat(len(label), 1)
    labels = torch.tensor(label)
    batch = Batch(image, labels, labels, torch.tensor(environment), labels)
    options = {"anneal": 0, "penalty": form}
    return float(toy.method("irm", model, options=options).step(batch)["penalty"])


def test_pinned_values(toy: Any) -> None:
    """The slope of an image is −ln 3/4 if its label is 0 and 3 ln 3/4 if it is 1."""
    unit = math.log(3) ** 2 / 16
    assert step(toy, [0, 1], [0, 1], "squared") == pytest.approx(unit * (1 + 9) / 2, abs=1e-14)
    assert step(toy, [0, 1, 0, 0], [0, 0, 1, 1], "squared") == pytest.approx(unit * (1 + 1) / 2, abs=1e-14)
    assert step(toy, [0, 1, 0, 0], [0, 0, 1, 1], "split") == pytest.approx(unit * (-3 + 1) / 2, abs=1e-14)


def test_a_single_image_has_no_halves(toy: Any) -> None:
    unit = math.log(3) ** 2 / 16
    assert step(toy, [0, 0, 1], [0, 0, 1], "split") == pytest.approx(unit, abs=1e-14)
    assert step(toy, [0, 1], [0, 1], "split") == 0.0
