from collections import Counter
from collections.abc import Callable, Sequence
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


def test_few_pairs_leave_rare_contents_out(build: Build, table: ImageTable) -> None:
    """Dealing every content one pair first would make more than a quarter of few pairs mislabelled."""
    part = table.part("train")
    for row in build(table, 2).source[:, 0].tolist():
        images = part.content[part.label == table.label[row]].bincount(minlength=10)
        assert images[table.content[row]] == images.max()


def test_smaller_sets_begin_larger_ones(build: Build, table: ImageTable) -> None:
    assert torch.equal(build(table, 40).source, build(table, 200).source[:40])


def test_same_seed_same_pairs(build: Build, table: ImageTable) -> None:
    assert torch.equal(build(table, 40, seed=1).source, build(table, 40, seed=1).source)


def test_more_than_there_are(build: Build, table: ImageTable) -> None:
    with pytest.raises(ValueError, match=r"6000 pairs were asked for, but only \d+ can be made \(5 to 9: \d+; 0 to 4"):
        build(table, 6_000)


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
        if key[a] == key[b] and int(table.attribute[a]) < int(table.attribute[b])
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


# -- more than two values of the attribute ------------------------------------------------------------------------


def of_values(*counts: Sequence[int], seed: int = 0) -> ImageTable:
    """Training images of as many labels as there are `counts`, with so many of each value of the attribute."""
    groups = [
        (label, value) for label, of_label in enumerate(counts) for value, n in enumerate(of_label) for _ in range(n)
    ]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    label, attribute = torch.tensor(groups)[order].unbind(dim=1)
    zeros = torch.zeros_like(label)
    return ImageTable(
        name="scans",
        images=torch.arange(len(label)).view(-1, 1, 1, 1).to(torch.uint8),
        label=label,
        attribute=attribute,
        split=zeros,
        environment=zeros,
        content=label,
        splits=("train",),
        classes=tuple(f"class {number}" for number in range(len(counts))),
        attributes=tuple(f"site {number}" for number in range(max(map(len, counts)))),
    )


def by_name(name: str, table: ImageTable, count: int, **options: int) -> PairSet:
    """Pairs by the builder of that name, in features that are drawn once."""
    if name == "random":
        return matched.random(table, count, **options)
    points = torch.randn(len(table), 3, generator=torch.Generator().manual_seed(5))
    return {"closest": matched.closest, "matched": matched.matched}[name](table, points, count, **options)


def values_met(table: ImageTable, pairs: PairSet) -> Counter[tuple[int, ...]]:
    """How many pairs there are of every two values."""
    return Counter(tuple(sorted(both)) for both in table.attribute[pairs.source].tolist())


@pytest.mark.parametrize("name", ["random", "closest", "matched"])
def test_more_values_members_share_the_label_and_differ_in_value_and_no_image_is_used_twice(name: str) -> None:
    table = of_values((30, 20, 25, 15), (12, 40, 10, 20))
    source = by_name(name, table, 24).source
    first, second = source.unbind(dim=1)
    assert torch.equal(table.label[first], table.label[second])
    assert bool((table.attribute[first] != table.attribute[second]).all())
    assert len(set(source.flatten().tolist())) == 48
    assert table.label[first].bincount().tolist() == [12, 12]


@pytest.mark.parametrize("name", ["random", "closest", "matched"])
def test_more_values_are_dealt_in_turn(name: str) -> None:
    """Where a value is rare, and where not, every two values have as many pairs as the others, as far as they go."""
    table = of_values((120, 110, 30), (100, 60, 90))
    found = by_name(name, table, 12)
    assert values_met(table, found) == {(0, 1): 4, (0, 2): 4, (1, 2): 4}


@pytest.mark.parametrize("name", ["random", "closest", "matched"])
def test_more_values_smaller_sets_begin_larger_ones(name: str) -> None:
    table = of_values((40, 35, 9), (30, 30, 30))
    assert torch.equal(by_name(name, table, 6, seed=3).source, by_name(name, table, 30, seed=3).source[:6])


@pytest.mark.parametrize(
    ("counts", "most"),
    [((5, 5, 5), 7), ((2, 1, 1), 2), ((9, 2, 3), 5), ((1, 1, 1, 1), 2), ((4, 0, 3), 3), ((4, 4, 4, 4, 1), 8)],
)
def test_random_makes_as_many_pairs_of_more_values_as_can_be(counts: tuple[int, ...], most: int) -> None:
    for seed in range(20):
        assert len(matched.random(of_values(counts, seed=seed), most, seed=seed)) == most
    with pytest.raises(ValueError, match=rf"only {most} can be made \(class 0: {most}\)"):
        matched.random(of_values(counts), most + 1)


def test_random_lets_every_two_values_meet() -> None:
    table = of_values((40, 40, 40, 40))
    met = values_met(table, matched.random(table, 80))
    assert len(met) == 6
    assert min(met.values()) >= 5


@pytest.mark.parametrize("block", [7, 1024])
@pytest.mark.parametrize("counts", [((9, 8, 7), (5, 6, 5)), ((2, 30, 4, 9, 1),)])
def test_matched_is_the_greedy_matching_of_more_values(
    counts: tuple[tuple[int, ...], ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matched, "BLOCK", block)
    table = of_values(*counts)
    points = torch.randn(len(table), 3, generator=torch.Generator().manual_seed(5))
    expected = naive_greedy(table, points, "train")
    pairs = matched.matched(table, points, len(expected))
    assert {frozenset(pair) for pair in pairs.source.tolist()} == expected
    with pytest.raises(ValueError, match=f"only {len(expected)} can be made"):
        matched.matched(table, points, len(expected) + 1)


@pytest.mark.parametrize("block", [7, 1024])
def test_closest_of_more_values_are_each_others_nearest(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matched, "BLOCK", block)
    table = of_values((20, 15, 18, 3))
    points = torch.randn(len(table), 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = range(len(table))
    nearest = [
        min(
            (o for o in rows if table.attribute[o] != table.attribute[row]),
            key=lambda o: float((points[o] - points[row]).norm()),
        )
        for row in rows
    ]
    expected = {frozenset((row, nearest[row])) for row in rows if nearest[nearest[row]] == row}
    found = matched.closest(table, points, len(expected)).source.tolist()
    assert {frozenset(pair) for pair in found} == expected
    met: dict[frozenset[int], list[float]] = {}
    for a, b in found:
        both = frozenset((int(table.attribute[a]), int(table.attribute[b])))
        met.setdefault(both, []).append(float((points[a] - points[b]).norm()))
    assert all(distances == sorted(distances) for distances in met.values())


def test_matched_at_equal_distances_of_more_values() -> None:
    table = of_values((6, 6, 6))
    assert len(matched.matched(table, torch.zeros(18, 2), 6)) == 6


def test_more_values_pinned() -> None:
    table = of_values((4, 3, 3), (3, 2, 4))
    assert matched.random(table, 4, seed=1).source.tolist() == [[18, 7], [12, 13], [6, 14], [11, 1]]
    assert by_name("matched", table, 4, seed=1).source.tolist() == [[18, 8], [11, 10], [6, 16], [13, 9]]
