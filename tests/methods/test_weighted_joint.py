"""Joint training with a weight: by hand, and against the ablation that it generalises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.guidance import Pairs


def parameters(toy: Any, name: str, *, steps: int = 5, every: int = 1, **options: Any) -> Tensor:
    """All parameters after some steps."""
    model = toy.network()
    method = toy.method(name, model, every=every, options=options)
    for number in range(steps):
        method.step(toy.batch(number))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_losses_by_hand(toy: Any) -> None:
    """Members 5 and 0 apart: L_A = 2.5. First members of other labels 1 apart, second ones √20: L_U = 2·(2 − 1)/8."""
    first = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    second = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)

    class Given:
        def draw(self) -> Pairs:
            return Pairs(first, second, torch.tensor([0, 1]))

    batch = toy.batch(0, n=3)._replace(image=torch.zeros(3, 2, dtype=torch.float64), label=torch.tensor([0, 0, 0]))
    model = toy.mirror()
    values = toy.method("joint_weighted", model, margin="2", pairs_from=Given(), options={"weight": 0.5}).step(batch)
    expected = {"task_loss": math.log(2), "alignment": 2.5, "uniformity": 0.25, "disagreement": 0.5}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected, abs=1e-12)
    assert model.bias.tolist() == pytest.approx([0.05, -0.05], abs=1e-12)  # no pair reaches the bias


@pytest.mark.parametrize("every", [1, 3])
def test_a_weight_of_one_is_the_sum_of_the_ablation(toy: Any, every: int) -> None:
    ablation = parameters(toy, "joint", every=every, order="sum", loss="corrective")
    torch.testing.assert_close(parameters(toy, "joint_weighted", every=every, weight=1), ablation, atol=1e-14, rtol=0)


@pytest.mark.parametrize("every", [1, 3])
def test_a_weight_of_none_is_plain_training_bit_for_bit(toy: Any, every: int) -> None:
    assert torch.equal(parameters(toy, "joint_weighted", every=every, weight=0), parameters(toy, "erm"))


def test_a_step_grows_with_the_weight(toy: Any) -> None:
    """Under plain gradient descent the first step is linear in it."""
    at = {weight: parameters(toy, "joint_weighted", steps=1, weight=weight) for weight in (0, 1, 2.5)}
    torch.testing.assert_close(at[2.5] - at[0], 2.5 * (at[1] - at[0]), atol=1e-13, rtol=1e-10)
    assert (at[1] - at[0]).abs().max() > 1e-3
