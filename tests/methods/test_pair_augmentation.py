"""Pairs as training images: the share they have in the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from ipg.guidance import Pairs


def together(batch: Any, pairs: Pairs) -> Any:
    """The task batch with the members of the pairs behind it."""
    label = torch.cat([batch.label, pairs.label, pairs.label])
    return batch._replace(image=torch.cat([batch.image, pairs.first, pairs.second]), label=label)


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


class Given:
    """Always the same pairs."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def draw(self) -> Pairs:
        return self.pairs


def test_the_loss_by_hand(toy: Any) -> None:
    """Task images at a loss of ln 2; a pair whose members are at ln 4 and ln 2: (1 − s) ln 2 + s · 1.5 ln 2."""
    zero = torch.zeros(3, 2, dtype=torch.float64)
    batch = toy.batch(0, n=3)._replace(image=zero, label=torch.zeros(3, dtype=torch.long))
    first = torch.tensor([[-math.log(3), 0.0]], dtype=torch.float64)
    pairs = Pairs(first, torch.zeros_like(first), torch.tensor([0]))
    model = toy.mirror()
    method = toy.method("pair_augmentation", model, options={"share": 0.25}, pairs_from=Given(pairs))
    values = method.step(batch)
    assert values["task_loss"].item() == pytest.approx(math.log(2), abs=1e-12)
    assert values["pair_loss"].item() == pytest.approx(1.5 * math.log(2), abs=1e-12)
    # ∂CE/∂bias is p − y: (−½, ½) for the images and one member, (−¾, ¾) for the other
    step = 0.1 * (0.75 * 0.5 + 0.25 * (0.5 + 0.75) / 2)
    assert model.bias.tolist() == pytest.approx([step, -step], abs=1e-12)


@pytest.mark.parametrize("n", [2, 6])
def test_with_the_pairs_own_share_it_is_plain_training_on_both(toy: Any, drawn: Any, n: int) -> None:
    model, plain = toy.network(), toy.network()
    options = {"share": 2 * n / (9 + 2 * n)}
    method = toy.method("pair_augmentation", model, options=options, pairs_from=drawn(n=n))
    erm = toy.method("erm", plain)
    for number in range(4):
        method.step(toy.batch(number))
        erm.step(together(toy.batch(number), toy.pairs(number, n=n)))
    assert_same(model, plain)


def test_without_a_share_it_is_plain_training(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    method, erm = toy.method("pair_augmentation", model, options={"share": 0}), toy.method("erm", plain)
    for number in range(4):
        method.step(toy.batch(number))
        erm.step(toy.batch(number))
    assert_same(model, plain)


def test_with_the_whole_share_it_sees_pairs_alone(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    toy.method("pair_augmentation", model, options={"share": 1}).step(toy.batch(0))
    alone = together(toy.batch(0, n=0), toy.pairs(0))
    toy.method("erm", plain).step(alone)
    assert_same(model, plain)


def test_pairs_are_drawn_at_every_step(toy: Any, drawn: Any) -> None:
    source = drawn()
    method = toy.method("pair_augmentation", toy.network(), every=3, pairs_from=source)
    for number in range(4):
        assert method.due
        method.step(toy.batch(number))
    assert source.count == 4


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_an_epoch_with_a_share(one_epoch: Any, share: float) -> None:
    outcome = one_epoch("pair_augmentation", options={"share": share})
    assert outcome.result["config"]["share"] == share
    assert math.isfinite(outcome.rows[0]["train"]["pair_loss"])
    assert outcome.rows[0]["train_pair_disagreement"] is not None
