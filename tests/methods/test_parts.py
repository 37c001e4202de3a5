"""What several methods take apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from ipg.methods.parts import class_rows, means_by


def test_means_and_counts_of_every_part() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    means, counts = means_by(values, torch.tensor([2, 0, 2, 0]), 4)
    assert means.tolist() == [5.0, 0.0, 2.5, 0.0]  # a part without rows has the mean 0
    assert counts.tolist() == [2.0, 0.0, 2.0, 0.0]


def test_rows_of_any_shape() -> None:
    values = torch.arange(12.0).reshape(3, 2, 2)
    means, _ = means_by(values, torch.tensor([1, 1, 0]), 2)
    assert torch.equal(means[0], values[2])
    assert torch.equal(means[1], (values[0] + values[1]) / 2)


def test_gradients_reach_the_rows() -> None:
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    means, _ = means_by(values, torch.tensor([0, 1, 1]), 3)
    means[1].backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 0.5, 0.5]


def test_a_single_logit_stands_for_two() -> None:
    """What the rows of classes make of features are the logits, for one output and for several."""
    features = torch.randn(4, 3, dtype=torch.float64)
    one, three = torch.randn(1, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    logits = features @ class_rows(one).T
    assert torch.equal(logits[:, 0], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(logits[:, 1:], features @ one.T)
    assert class_rows(three) is three


@pytest.mark.parametrize("name", ["dfr", "eva_e"])
def test_weights_that_are_made_of_others_cannot_be_fitted(name: str, toy: Any) -> None:
    """What was fitted would be gone with the next pass, and nobody would know."""
    model = toy.network()
    toy.method(name, model)
    weight_norm(model[-1])
    with pytest.raises(ValueError, match=f"method '{name}' fits the last layer anew, and its weights are made of oth"):
        toy.method(name, model)
