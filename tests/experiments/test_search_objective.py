"""What a search maximises, and that it has no test images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ipg.data import load
from ipg.data.table import ImageTable
from ipg.experiments.search.objective import choose_objective, group_mean, split_of, value_of, without_test


def test_test_images_are_gone(make_table: Callable[..., ImageTable]) -> None:
    whole = make_table()
    shuffled = whole.take(torch.randperm(len(whole), generator=torch.Generator().manual_seed(1)))
    table = without_test(shuffled)
    assert table.splits == ("train", "validation")
    assert len(table) == 160
    for split in table.splits:
        assert torch.equal(table.part(split).images, shuffled.part(split).images)
        assert torch.equal(table.part(split).label, shuffled.part(split).label)
    with pytest.raises(ValueError, match="bars has no split 'test'; it has train, validation"):
        table.part("test")


def test_splits_after_the_test_split_keep_their_images(make_table: Callable[..., ImageTable]) -> None:
    whole = make_table()
    turned = replace(whole, splits=("train", "test", "validation"))
    table = without_test(turned)
    assert table.splits == ("train", "validation")
    assert torch.equal(table.part("validation").images, turned.part("validation").images)


def test_colored_fashion_has_no_image_that_contradicts_its_shortcut() -> None:
    """So the worst group of its validation images would choose those who use the colour."""
    table = without_test(load.load("colored_fashion"))
    assert choose_objective(table, held_out=True) == "pairs"
    with pytest.raises(ValueError, match="'worst_group' cannot be measured on colored_fashion: its validation images"):
        choose_objective(table, "worst_group", held_out=True)
    with pytest.raises(ValueError, match="colored_fashion has nothing to judge trials by: search: it has no split"):
        choose_objective(table, held_out=False)


def test_colored_mnist_is_judged_on_its_own_split(make_table: Callable[..., ImageTable]) -> None:
    table = replace(make_table(), splits=("train", "validation", "search"))
    assert choose_objective(table, held_out=False) == "search"
    assert choose_objective(table, "worst_group", held_out=False) == "worst_group"
    assert [split_of("search"), split_of("pairs"), split_of("worst_group")] == ["search", "validation", "validation"]


def test_groups_decide_where_all_are_known(make_table: Callable[..., ImageTable]) -> None:
    assert choose_objective(without_test(make_table()), held_out=True) == "worst_group"
    with pytest.raises(ValueError, match="there is no objective 'test'; there are auto, search, worst_group, pairs"):
        choose_objective(make_table(), "test", held_out=True)
    with pytest.raises(
        ValueError, match=r"'pairs' cannot be measured on bars: there are no held-out pairs .*--split validation"
    ):
        choose_objective(make_table(), "pairs", held_out=False)


def test_values_by_hand() -> None:
    metrics = {"average": 0.9, "worst_group": 0.25, "group_mean": 0.5, "balanced": 0.8}
    row = {"validation": metrics, "search": {"average": 0.7, "group_mean": 0.4}, "pair_disagreement": 0.25}
    assert value_of("worst_group", row) == 0.25
    assert value_of("search", row) == 0.7
    assert value_of("pairs", row) == pytest.approx(0.8 * 0.75)
    assert (group_mean("worst_group", row), group_mean("search", row)) == (0.5, 0.4)
    assert value_of("pairs", {**row, "pair_disagreement": None}) is None
