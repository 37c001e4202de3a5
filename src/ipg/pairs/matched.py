"""Matched pairs: two images of a split with one label and one content, and different values of the attribute.

For data whose images cannot be edited. `random` takes any two; `closest` those that are nearest to each other in
features; `matched` goes on with the nearest two of those that are left. Features may be of any
kind, and `features.joined` adds further attributes to them. Members differ in more than the attribute (two hands wrote
two sevens), so these pairs teach more than they should: the paper's ColoredMNIST falls from 72.8 % with recoloured
pairs to 67.2 % (closest) and 62.6 % (random).

Pairs are dealt equally from the labels, and within a label in proportion to how many images each content has: as many
of the pairs are mislabelled as of the images. Every second pair of a label is turned around, so that first members,
like second ones, come equally from all groups.

The attribute may have any number of values. With more than two, an image is matched among the images of all other
values, and the pairs found are dealt in turn from every two values that have some, so that a rare value is not lost
among common ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ipg.data.table import ImageTable
from ipg.pairs.balance import deal
from ipg.pairs.pairset import PairSet

__all__ = ["closest", "matched", "random"]

BLOCK = 1024
"""Rows of the distance matrix that exist at a time."""


Match = Callable[[Sequence[Tensor], torch.Generator], Tensor]
"""From the images of each value of the attribute, in random order, pairs (n, 2) with those of the lower value first."""


def random(table: ImageTable, count: int, *, split: str = "train", seed: int = 0) -> PairSet:
    """Pair images at random; none is used twice.

    There are as many pairs as can be: one member is always of the value that has most images left, and the other is
    drawn from all images of other values.

    Args:
        table: images with two values of the attribute or more.
        count: how many pairs.
        split: whose images to use.
        seed: of the matching.
    """
    return _pair(table, count, _at_random, builder="random", split=split, seed=seed)


def closest(
    table: ImageTable, features: Tensor | NDArray[Any], count: int, *, split: str = "train", seed: int = 0
) -> PairSet:
    """Pair mutual nearest neighbours, those at the smallest Euclidean distance first; no image is used twice.

    Args:
        table: images with two values of the attribute or more.
        features: (N, ...) a row an image of the table, or of the split alone, in its order.
        count: how many pairs; not more than there are mutual nearest neighbours.
        split: whose images to use.
        seed: decides between neighbours at equal distance.
    """
    place, points = _points(table, features, split)

    def match(values: Sequence[Tensor], generator: torch.Generator) -> Tensor:
        return _mutual_neighbours(values, [points[place[rows]].double() for rows in values])

    return _pair(table, count, match, builder="closest", split=split, seed=seed)


def matched(
    table: ImageTable, features: Tensor | NDArray[Any], count: int, *, split: str = "train", seed: int = 0
) -> PairSet:
    """Pair mutual nearest neighbours, then those among the images left over, and so on; no image is used twice.

    That is the greedy matching, the nearest two of all first, in rounds. Of two values it yields as many pairs as the
    rarer one of each label has images; of more it may leave images of one value over, which `random` would have paired.

    Args:
        table: images with two values of the attribute or more.
        features: (N, ...) a row an image of the table, or of the split alone, in its order.
        count: how many pairs.
        split: whose images to use.
        seed: decides between neighbours at equal distance.
    """
    place, points = _points(table, features, split)

    def match(values: Sequence[Tensor], generator: torch.Generator) -> Tensor:
        found = torch.empty(0, 2, dtype=torch.long)
        while _is_wanting(found, values, table.attribute, count):
            new = _mutual_neighbours(values, [points[place[rows]].float() for rows in values])
            if len(new) == 0:
                break
            found = torch.cat([found, new])
            values = [rows[~torch.isin(rows, new)] for rows in values]
        return found

    return _pair(table, count, match, builder="matched", split=split, seed=seed)


def _at_random(values: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    left = [rows.tolist()[::-1] for rows in values]  # to be taken from the end
    found = []
    while True:
        sizes = [len(rows) for rows in left]
        most = sizes.index(max(sizes))
        others = [number for number, size in enumerate(sizes) if size and number != most]
        if not others:
            break
        other = others[0]
        if len(others) > 1:
            shares = torch.tensor([sizes[number] for number in others], dtype=torch.float64)
            other = others[int(torch.multinomial(shares, 1, generator=generator))]
        found.append([left[number].pop() for number in sorted((most, other))])
    return torch.tensor(found, dtype=torch.long).view(-1, 2)


def _is_wanting(found: Tensor, values: Sequence[Tensor], attribute: Tensor, count: int) -> bool:
    """Whether two values that have images left have fewer than `count` pairs yet."""
    pairs = Counter((first, second) for first, second in attribute[found].tolist())
    present = sorted(int(attribute[rows[0]]) for rows in values if len(rows))
    return any(pairs[both] < count for both in combinations(present, 2))


def _points(table: ImageTable, features: Tensor | NDArray[Any], split: str) -> tuple[Tensor, Tensor]:
    """Where an image of the table is among the features, (N,), and the features, (n, D)."""
    rows = table.indices(split)
    points = torch.as_tensor(features)
    if points.ndim < 2 or len(points) not in (len(table), len(rows)):
        raise ValueError(
            f"features must be (N, D) with a row for each of {table.name}'s {len(table)} images, or of the {len(rows)} "
            f"of {split!r} alone; got {tuple(points.shape)}"
        )
    if not points.isfinite().all():
        raise ValueError("features must be finite, but some are NaN or infinite; check the model they come from")
    place = torch.arange(len(table))
    if len(points) < len(table):
        place[rows] = torch.arange(len(rows))
    return place, points.flatten(1)


def _mutual_neighbours(values: Sequence[Tensor], points: Sequence[Tensor]) -> Tensor:
    """Of images and their points by value, those that are each other's nearest of another value, from near to far.

    Every distance is computed once, and the earliest image has precedence among equally near ones: so there is a pair
    as long as two values have images.
    """
    rows = torch.cat(list(values))
    starts = torch.tensor([0, *(len(value) for value in values)]).cumsum(0).tolist()
    nearest = torch.full((len(rows),), -1)
    distance = points[0].new_full((len(rows),), torch.inf)

    def update(start: int, near: Tensor, places: Tensor) -> None:
        part = slice(start, start + len(near))
        nearer = (near < distance[part]) | (nearest[part] < 0)
        nearest[part] = torch.where(nearer, places, nearest[part])
        distance[part] = torch.where(nearer, near, distance[part])

    for one, other in combinations([number for number, value in enumerate(values) if len(value)], 2):
        for start in range(0, len(points[one]), BLOCK):
            distances = torch.cdist(points[one][start : start + BLOCK], points[other])  # (≤ BLOCK, m)
            near, places = distances.min(dim=1)
            update(starts[one] + start, near, places + starts[other])
            near, places = distances.min(dim=0)
            update(starts[other], near, places + starts[one] + start)
    places = torch.arange(len(rows))
    first = places[(nearest > places) & (nearest[nearest] == places)]
    first = first[distance[first].argsort(stable=True)]
    return torch.stack([rows[first], rows[nearest[first]]], dim=1)


def _pair(table: ImageTable, count: int, match: Match, *, builder: str, split: str, seed: int) -> PairSet:
    """Match the values of the attribute within every label and content, and deal `count` of the pairs found."""
    if len(table.attributes) == 1:
        raise ValueError(
            f"{table.name}: {builder} pairs are two images of one label and of two attributes; this needs a column "
            f"attribute"
        )
    rows = table.indices(split)
    generator = torch.Generator().manual_seed(seed)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    queues: dict[str, Tensor] = {}
    for label, of_label in _apart(rows, table.label):
        pairs, turns = [], []
        for _, alike in _apart(of_label, table.content):
            found = match([of_value for _, of_value in _apart(alike, table.attribute)], generator)  # (n, 2)
            pairs.append(_in_turn(found, table.attribute))
            turns.append((torch.arange(len(found)) + 0.5) / len(alike))  # a content with more images comes more often
        queue = torch.cat(pairs)[torch.cat(turns).argsort(stable=True)]
        queue[1::2] = queue[1::2].flip(1)
        queues[table.classes[label]] = queue
    if queues and not any(map(len, queues.values())):
        raise ValueError(
            f"{count} pairs were asked for, but only 0 can be made: {builder} pairs are two images of one label and of "
            f"two attributes, and no label of {table.name} has {split} images of two attributes. Make the second image "
            f"instead: with background (masks of the objects), recolored (coloured images) or counterparts (images of "
            f"your own)"
        )
    source = deal(queues, count)
    return PairSet(
        first=table.images[source[:, 0]],
        second=table.images[source[:, 1]],
        label=table.label[source[:, 0]],
        source=source,
        split=split,
        builder=builder,
    )


def _in_turn(pairs: Tensor, attribute: Tensor) -> Tensor:
    """Pairs (n, 2), the first of every two values that have any, then the second of each, and so on."""
    seen: Counter[tuple[int, ...]] = Counter()
    turn = []
    for both in attribute[pairs].tolist():
        turn.append(seen[tuple(both)])
        seen[tuple(both)] += 1
    return pairs[torch.tensor(turn, dtype=torch.long).argsort(stable=True)]


def _apart(rows: Tensor, column: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Every value that `column` has in `rows`, and the rows that have it."""
    values = column[rows]
    for value in sorted(set(values.tolist())):
        yield value, rows[values == value]
