"""Subsampled groups: which images are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ipg.data.batches import Batches
from ipg.data.table import ImageTable
from ipg.methods import method_class


def kept(table: ImageTable, *, seed: int = 0) -> Tensor:
    sampling = method_class("subg").sampling(table, None, seed=seed)
    assert sampling.weights is None
    assert sampling.rows is not None
    return sampling.rows


def of_groups(toy: Any, *group: int) -> ImageTable:
    key = torch.tensor(group)
    return replace(toy.table(n=len(key)), label=key // 2, attribute=key % 2)


def test_every_group_has_as_many_as_the_smallest(make_table: Callable[..., ImageTable]) -> None:
    table = make_table().part("train")
    rows = kept(table)
    least = int(torch.bincount(table.group, minlength=4).min())
    assert 0 < least < 20
    assert torch.bincount(table.group[rows], minlength=4).tolist() == [least] * 4
    assert len(rows.unique()) == len(rows)


def test_groups_without_images_are_not_the_smallest(toy: Any, make_table: Callable[..., ImageTable]) -> None:
    table = of_groups(toy, 0, 0, 0, 3, 3, 5, 5, 5, 5)
    assert torch.bincount(table.group[kept(table)], minlength=6).tolist() == [2, 0, 0, 2, 0, 2]
    assert len(kept(make_table(agreement=1.0).part("train"))) == 120  # two groups of 60


def test_a_pinned_draw(toy: Any) -> None:
    assert kept(of_groups(toy, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3)).tolist() == [0, 2, 3, 4, 7, 8, 10, 11]


def test_groups_of_one_size_are_kept_whole(toy: Any) -> None:
    """Then a pass is that of plain training, in another order."""
    assert kept(toy.table()).tolist() == list(range(12))


def test_one_draw_a_seed(make_table: Callable[..., ImageTable]) -> None:
    table = make_table(train=600).part("train")
    assert torch.equal(kept(table, seed=4), kept(table, seed=4))
    assert not torch.equal(kept(table, seed=4), kept(table, seed=5))
    batches = Batches(table, 64, seed=0, sampling=method_class("subg").sampling(table, None, seed=4))
    passes = [torch.cat(list(batches.rows(epoch))) for epoch in (0, 1)]
    assert not torch.equal(*passes)
    assert torch.equal(*(rows.sort().values for rows in passes))  # the same images in every pass


def test_the_loss_is_not_weighted_by_class(toy: Any) -> None:
    model, plain = toy.network(), toy.network()
    weight = torch.tensor([3.0, 1.0, 5.0], dtype=torch.float64)
    toy.method("subg", model, criterion=nn.CrossEntropyLoss(weight)).step(toy.batch(0))
    toy.method("erm", plain).step(toy.batch(0))
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_epoch_is_a_pass_over_what_is_kept(make_table: Callable[..., ImageTable], one_epoch: Any) -> None:
    table = make_table(train=1200)
    least = int(torch.bincount(table.part("train").group).min())
    assert one_epoch("subg", table=table).rows[0]["step"] == -(-4 * least // 32) < 1200 // 32
