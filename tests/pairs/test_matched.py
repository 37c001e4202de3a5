from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ipg.data.table import ImageTable
from ipg.pairs import matched
from ipg.pairs.pairset import PairSet

Build = Callable[..., PairSet]


@pytest.fixture(scope="module")
def features(table: ImageTable) -> Tensor:
    return torch.randn(len(table), 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["random", "closest"])
def build(request: pytest.FixtureRequest, features: Tensor) -> Build:
    """Both builders, called alike."""
    if request.param == "random":
        return matched.random
    return lambda table, count, **options: matched.closest(table, features, count, **options)


def test_members_share_label_and_content_and_differ_in_attribute(build: Build, table: ImageTable) -> None:
    pairs = build(table, 200)
    first, second = pairs.source.unbind(dim=1)
    assert torch.equal(table.label[first], table.label[second])
    assert torch.equal(table.content[first], table.content[second])
    assert torch.equal(table.attribute[first], 1 - table.attribute[second])
    assert torch.equal(pairs.label, table.label[first])
    assert torch.equal(pairs.first, table.images[first])
    assert torch.equal(pairs.second, table.images[second])


@pytest.mark.parametrize("split", ["train", "validation", "search", "test"])
def test_pairs_come_from_their_split_alone(build: Build, table: ImageTable, split: str) -> None:
    pairs = build(table, 20, split=split)
    assert pairs.split == split
    assert set(table.split[pairs.source].flatten().tolist()) == {table.splits.index(split)}


def test_no_image_is_used_twice(build: Build, table: ImageTable) -> None:
    source = build(table, 250).source.flatten().tolist()
    assert len(set(source)) == 500


def test_groups_give_equally_on_both_sides(build: Build, table: ImageTable) -> None:
    source = build(table, 200).source
    assert table.group[source[:, 0]].bincount().tolist() == [50, 50, 50, 50]
    assert table.group[source[:, 1]].bincount().tolist() == [50, 50, 50, 50]


def test_contents_come_as_often_as_among_the_images(build: Build, table: ImageTable) -> None:
    """So a quarter of the pairs is mislabelled, like the images."""
    source = build(table, 200).source[:, 0]
    for label in (0, 1):
        images = table.part("train").content[table.part("train").label == label].bincount(minlength=10)
        pairs = table.content[source][table.label[source] == label].bincount(minlength=10)
        assert (pairs - 100 * images / images.sum()).abs().max() <= 1.5


def test_smaller_sets_begin_larger_ones(build: Build, table: ImageTable) -> None:
    assert torch.equal(build(table, 40).source, build(table, 200).source[:40])


def test_same_seed_same_pairs(build: Build, table: ImageTable) -> None:
    assert torch.equal(build(table, 40, seed=1).source, build(table, 40, seed=1).source)


def test_more_than_there_are(build: Build, table: ImageTable) -> None:
    with pytest.raises(ValueError, match=r"6000 pairs were asked for, but only \d+ can be made \(5 to 9: \d+; 0 to 4"):
        build(table, 6_000)


def test_more_than_two_attributes(build: Build, table: ImageTable) -> None:
    with pytest.raises(ValueError, match=r"between two attributes, but it has 3 \(red, green, blue\)"):
        build(replace(table, attributes=("red", "green", "blue")), 4)


def test_random_pairs_differ_by_seed(table: ImageTable) -> None:
    assert not torch.equal(matched.random(table, 40, seed=1).source, matched.random(table, 40, seed=2).source)


def test_random_uses_every_image_of_the_rarer_attribute(table: ImageTable) -> None:
    part = table.part("train")
    available = 0
    for label in (0, 1):
        for digit in range(10):
            alike = part.attribute[(part.label == label) & (part.content == digit)]
            available += min(int((alike == 0).sum()), int((alike == 1).sum()))
    assert len(matched.random(table, available)) == available
    with pytest.raises(ValueError, match=f"only {available} can be made"):
        matched.random(table, available + 1)


def naive_mutual_neighbours(table: ImageTable, points: Tensor, split: str) -> dict[tuple[int, int], list[set[int]]]:
    """For every label and content its mutual nearest neighbours from near to far, in double precision, one by one."""
    rows = table.indices(split).tolist()
    vectors = points.double().numpy()
    label, content, attribute = (c.tolist() for c in (table.label, table.content, table.attribute))

    def nearest(row: int) -> int:
        others = [
            o for o in rows if (label[o], content[o], 1 - attribute[o]) == (label[row], content[row], attribute[row])
        ]
        return min(others, key=lambda o: float(np.linalg.norm(vectors[o] - vectors[row])), default=-1)

    nearest_of = {row: nearest(row) for row in rows}
    found = [
        (float(np.linalg.norm(vectors[a] - vectors[b])), a, b)
        for a, b in nearest_of.items()
        if attribute[a] == 0 and nearest_of.get(b) == a
    ]
    result: dict[tuple[int, int], list[set[int]]] = {}
    for _, a, b in sorted(found):
        result.setdefault((label[a], content[a]), []).append({a, b})
    return result


@pytest.mark.parametrize("block", [7, 1024])
def test_closest_against_the_naive_form(
    table: ImageTable, features: Tensor, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matched, "BLOCK", block)
    small = table.take(torch.arange(900))
    expected = naive_mutual_neighbours(small, features[:900], "train")
    total = sum(map(len, expected.values()))
    assert total > 30
    pairs = matched.closest(small, features[:900], total)
    found: dict[tuple[int, int], list[set[int]]] = {}
    for a, b in pairs.source.tolist():
        found.setdefault((int(small.label[a]), int(small.content[a])), []).append({a, b})
    assert found == expected  # within a label and content also in the same order
    with pytest.raises(ValueError, match=f"only {total} can be made"):
        matched.closest(small, features[:900], total + 1)


def test_features_of_the_split_alone_mean_the_same(table: ImageTable, features: Tensor) -> None:
    rows = table.indices("validation")
    whole = matched.closest(table, features, 30, split="validation")
    part = matched.closest(table, features[rows].numpy(), 30, split="validation")
    assert torch.equal(whole.source, part.source)


def test_closer_than_random(table: ImageTable, features: Tensor) -> None:
    def distance(pairs: PairSet) -> float:
        a, b = features[pairs.source[:, 0]], features[pairs.source[:, 1]]
        return float((a - b).norm(dim=1).mean())

    assert distance(matched.closest(table, features, 100)) < 0.6 * distance(matched.random(table, 100))


def test_seed_decides_between_neighbours_at_equal_distance(table: ImageTable) -> None:
    same = torch.zeros(len(table), 2)
    one, other = (matched.closest(table, same, 10, seed=seed).source for seed in (1, 2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("shape", [(10, 3), (6_000,)])
def test_features_of_another_shape(table: ImageTable, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a row for each of colored_mnist's 6000 images, or of the \d+ of 'train'"):
        matched.closest(table, torch.zeros(shape), 4)


def test_features_that_are_not_finite(table: ImageTable, features: Tensor) -> None:
    broken = features.clone()
    broken[17, 2] = torch.nan
    with pytest.raises(ValueError, match="features must be finite"):
        matched.closest(table, broken, 4)


def naive_greedy(table: ImageTable, points: Tensor, split: str) -> set[frozenset[int]]:
    """The nearest two of all, then the nearest two of the others, and so on, in double precision."""
    rows = table.indices(split).tolist()
    vectors = points.double().numpy()
    key = [(int(table.label[row]), int(table.content[row])) for row in range(len(table))]
    both = sorted(
        (float(np.linalg.norm(vectors[a] - vectors[b])), a, b)
        for a in rows
        for b in rows
        if key[a] == key[b] and int(table.attribute[a]) == 0 and int(table.attribute[b]) == 1
    )
    used: set[int] = set()
    found = set()
    for _, a, b in both:
        if a not in used and b not in used:
            used |= {a, b}
            found.add(frozenset((a, b)))
    return found


@pytest.mark.parametrize("block", [7, 1024])
def test_matched_is_the_greedy_matching(
    table: ImageTable, features: Tensor, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matched, "BLOCK", block)
    small = table.take(torch.arange(700))
    expected = naive_greedy(small, features[:700], "train")
    pairs = matched.matched(small, features[:700], len(expected))
    assert {frozenset(pair) for pair in pairs.source.tolist()} == expected
    assert pairs.builder == "matched"
    with pytest.raises(ValueError, match=f"only {len(expected)} can be made"):
        matched.matched(small, features[:700], len(expected) + 1)


def test_matched_begins_with_the_closest(table: ImageTable, features: Tensor) -> None:
    source = matched.matched(table, features, 60).source
    assert torch.equal(source, matched.closest(table, features, 60).source)
    assert torch.equal(matched.matched(table, features, 300).source[:60], source)
    assert len(set(matched.matched(table, features, 300).source.flatten().tolist())) == 600


def test_matched_at_equal_distances(table: ImageTable) -> None:
    """Every image that can have a partner gets one, though all are as near."""
    available = len(matched.random(table.take(torch.arange(900)), 40))
    assert len(matched.matched(table.take(torch.arange(900)), torch.zeros(900, 2), available)) == available


@pytest.mark.parametrize("name", ["random", "matched", "closest"])
def test_without_attributes_the_column_is_asked_for(table: ImageTable, name: str) -> None:
    plain = replace(table, attribute=torch.zeros_like(table.attribute), attributes=("all",))
    given = (plain,) if name == "random" else (plain, torch.zeros(len(plain), 2))
    with pytest.raises(ValueError, match=f"{name} pairs are two images .*; this needs a column attribute"):
        getattr(matched, name)(*given, 4)
