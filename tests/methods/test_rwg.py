"""Reweighted sampling: the draws by hand, the step against plain training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ipg.data.batches import Batches
from ipg.data.table import ImageTable
from ipg.methods import method_class
from ipg.methods.rwg import balanced_weights


def of_groups(toy: Any, *group: int) -> ImageTable:
    """A table whose rows are of these groups, two attributes each."""
    key = torch.tensor(group)
    return replace(toy.table(n=len(key)), label=key // 2, attribute=key % 2)


def test_probabilities_by_hand(toy: Any) -> None:
    """Three groups of 3, 1 and 2 images; the three without images do not count."""
    weights = balanced_weights(of_groups(toy, 0, 3, 0, 5, 0, 5))
    assert weights.tolist() == pytest.approx([1 / 9, 1 / 3, 1 / 9, 1 / 6, 1 / 9, 1 / 6], abs=1e-15)


def test_groups_of_one_size_are_drawn_as_all_images_alike(toy: Any) -> None:
    assert balanced_weights(of_groups(toy, 0, 3, 3, 0, 4, 4)).tolist() == pytest.approx([1 / 6] * 6, abs=1e-15)


def test_a_pass_has_all_groups_alike(make_table: Callable[..., ImageTable]) -> None:
    table = make_table(train=4000, agreement=0.95).part("train")
    sampling = method_class("rwg").sampling(table, None, seed=0)
    drawn = torch.cat(list(Batches(table, 64, seed=0, sampling=sampling).rows(0)))
    counts = torch.bincount(table.group[drawn], minlength=4)
    assert len(drawn) == 4000
    assert (counts - 1000).abs().max() < 100  # 3.6 standard deviations
    assert torch.bincount(table.group).min() < 120


def test_the_loss_is_not_weighted_by_class(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    weight = torch.tensor([3.0, 1.0, 5.0], dtype=torch.float64)
    method, erm = toy.method("rwg", model, criterion=nn.CrossEntropyLoss(weight)), toy.method("erm", plain)
    for number in range(4):
        one, other = method.step(toy.batch(number)), erm.step(toy.batch(number))
        assert torch.equal(one["task_loss"], other["task_loss"])
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_groups_without_images(make_table: Callable[..., ImageTable], one_epoch: Any) -> None:
    table = make_table(agreement=1.0)
    weights = method_class("rwg").sampling(table.part("train"), None, seed=0).weights
    assert weights is not None
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert one_epoch("rwg", table=table).rows[0]["step"] == 4
