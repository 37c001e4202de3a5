from dataclasses import replace

import pytest
import torch

from ipg.data.coloring import gray
from ipg.data.table import ImageTable
from ipg.pairs.recolored import build


def test_members_differ_in_color_alone(table: ImageTable) -> None:
    pairs = build(table, 200)
    rows = pairs.source[:, 0]
    assert torch.equal(pairs.first, table.images[rows])
    assert torch.equal(pairs.label, table.label[rows])
    assert torch.equal(pairs.source[:, 1], rows)
    assert pairs.first.ne(pairs.second).flatten(1).any(dim=1).all()
    every = torch.arange(200)
    assert torch.equal(pairs.second[every, 1 - table.attribute[rows]], pairs.first[every, table.attribute[rows]])
    assert pairs.builder == "recolored"


def test_recolored_twice_is_the_original(table: ImageTable) -> None:
    pairs = build(table, 50)
    swapped = replace(table, images=table.images.clone())
    swapped.images[pairs.source[:, 0]] = pairs.second
    assert torch.equal(build(swapped, 50).second, pairs.first)


@pytest.mark.parametrize("split", ["train", "validation", "search", "test"])
def test_pairs_come_from_their_split_alone(table: ImageTable, split: str) -> None:
    pairs = build(table, 150, split=split)
    assert pairs.split == split
    assert set(table.split[pairs.source].flatten().tolist()) == {table.splits.index(split)}


def test_no_held_out_image_is_in_any_training_pair(fashion: ImageTable) -> None:
    """Not even when every training image is in a pair."""
    pairs = build(fashion, 12_000)
    held_out = torch.cat([fashion.indices("validation"), fashion.indices("test")])
    assert not torch.isin(pairs.source, held_out).any()
    assert torch.equal(pairs.source[:, 0].sort().values, fashion.indices("train"))


def test_groups_give_equally(table: ImageTable) -> None:
    assert table.group[build(table, 40).source[:, 0]].bincount().tolist() == [10, 10, 10, 10]
    assert table.group[build(table, 42).source[:, 0]].bincount().tolist() == [11, 11, 10, 10]


def test_groups_without_images_are_passed_over(fashion: ImageTable) -> None:
    assert fashion.group[build(fashion, 40).source[:, 0]].bincount(minlength=4).tolist() == [20, 0, 0, 20]


def test_a_short_group_gives_all_and_the_others_the_rest(table: ImageTable) -> None:
    available = table.part("train").group.bincount(minlength=4)
    short = int(available.min())
    count = 4 * short + 30
    given = table.group[build(table, count).source[:, 0]].bincount(minlength=4)
    assert given[available.argmin()] == short
    assert given.sum() == count
    assert ((given == available) | (given >= given.max() - 1)).all()
    assert given.max() > short


def test_without_replacement_and_smaller_sets_begin_larger_ones(table: ImageTable) -> None:
    large = build(table, 300).source[:, 0]
    assert len(set(large.tolist())) == 300
    assert torch.equal(build(table, 40).source[:, 0], large[:40])


def test_seeds(table: ImageTable) -> None:
    assert torch.equal(build(table, 40, seed=1).source, build(table, 40, seed=1).source)
    assert not torch.equal(build(table, 40, seed=1).source, build(table, 40, seed=2).source)


def test_more_than_there_are(fashion: ImageTable) -> None:
    with pytest.raises(ValueError, match=r"2001 pairs were asked for, but only 2000 can be made \(garment, red: 1198;"):
        build(fashion, 2_001, split="validation")


def test_images_without_two_channels(table: ImageTable) -> None:
    with pytest.raises(ValueError, match="colored_mnist: recoloured pairs swap two channels, but its images have 1"):
        build(replace(table, images=gray(table.images)), 4)
