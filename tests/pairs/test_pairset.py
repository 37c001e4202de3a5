import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ipg.guidance import Pairs
from ipg.pairs.pairset import PairSampler, PairSet


def make_pairs(n: int) -> PairSet:
    """n pairs whose label is their number."""
    first = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).repeat(1, 2, 3, 3)
    label = torch.arange(n)
    return PairSet(first, 255 - first, label, torch.stack([label, label], dim=1), split="train", builder="toy")


def drawn(sampler: PairSampler, batches: int) -> Tensor:
    """Numbers of the pairs of the next batches, (batches, batch_size)."""
    return torch.stack([pairs.label for pairs in islice(sampler, batches)])


def test_a_batch_is_of_floats_from_0_to_1() -> None:
    batch = make_pairs(5).batch(torch.tensor([4, 2]))
    assert batch.label.tolist() == [4, 2]
    assert torch.equal(batch.first[:, 0, 0, 0] * 255, torch.tensor([4.0, 2.0]))
    assert torch.allclose(batch.first + batch.second, torch.ones(2, 2, 3, 3))


def test_pairs_of_bytes_are_drawn_as_floats_from_0_to_1() -> None:
    """As `Guidance` says where it refuses bytes; a transform sees the floats, and floats stay as they are."""
    of_bytes = make_pairs(5)
    pairs = Pairs(of_bytes.first, of_bytes.second, of_bytes.label)
    batch = PairSampler(pairs, 5).draw()
    assert torch.equal(batch.first, of_bytes.first / 255)
    assert torch.equal(batch.second, of_bytes.second / 255)
    assert torch.equal(PairSampler(pairs, 5, transform=lambda images: images - 1).draw().first, batch.first - 1)
    assert PairSampler(batch, 5).draw().second.max() == 1


def test_floats_are_of_the_default_precision() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        batch = PairSampler(make_pairs(4), 2).draw()
    finally:
        torch.set_default_dtype(torch.float32)
    assert batch.first.dtype == batch.second.dtype == torch.float64


def test_take_keeps_columns_together() -> None:
    taken = make_pairs(6).take(torch.tensor([5, 1]))
    assert len(taken) == 2
    assert taken.source.tolist() == [[5, 5], [1, 1]]
    assert taken.first[:, 0, 0, 0].tolist() == [5, 1]
    assert taken.second[:, 0, 0, 0].tolist() == [250, 254]


def test_source_needs_two_rows_a_pair() -> None:
    with pytest.raises(ValueError, match=r"source must have shape \(4, 2\), got \(4,\)"):
        replace(make_pairs(4), source=torch.arange(4))


def test_members_of_one_shape() -> None:
    pairs = make_pairs(4)
    with pytest.raises(ValueError, match="the members of a pair must have one shape"):
        replace(pairs, second=pairs.second[..., :2])


def test_each_pair_once_a_round() -> None:
    order = drawn(PairSampler(make_pairs(12), 4), 9).flatten()
    rounds = order.view(3, 12)
    for one in rounds:
        assert sorted(one.tolist()) == list(range(12))
    assert not torch.equal(rounds[0], rounds[1])
    assert not torch.equal(rounds[0], torch.arange(12))


def test_rounds_that_do_not_fill_their_last_batch() -> None:
    """Batches stay full and go on into the next round, so 5 batches of 4 are 2 rounds of 10."""
    batches = drawn(PairSampler(make_pairs(10), 4), 50)
    assert batches.shape == (50, 4)
    for one in batches.flatten().view(-1, 10):
        assert sorted(one.tolist()) == list(range(10))


@pytest.mark.parametrize("batch_size", [7, 8, 1000])
def test_all_pairs_when_they_fit(batch_size: int) -> None:
    for pairs in islice(PairSampler(make_pairs(7), batch_size), 3):
        assert pairs.label.tolist() == list(range(7))


def test_seeds() -> None:
    one, same, other = (drawn(PairSampler(make_pairs(30), 8, seed=seed), 5) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_default_device_does_not_matter() -> None:
    expected = drawn(PairSampler(make_pairs(10), 3), 8)
    pairs = make_pairs(10)
    with torch.device("meta"):
        sampler = PairSampler(pairs, 3)
        found = drawn(sampler, 8)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("already", [0, 1, 3, 4, 11])
def test_resumes_with_the_same_batches(already: int) -> None:
    sampler = PairSampler(make_pairs(10), 3, seed=5)
    for _ in range(already):
        sampler.draw()
    state = sampler.state_dict()
    expected = drawn(sampler, 12)
    fresh = PairSampler(make_pairs(10), 3, seed=99)
    fresh.load_state_dict(state)
    assert torch.equal(drawn(fresh, 12), expected)
    fresh.load_state_dict(state)  # the state is not changed by drawing
    assert torch.equal(drawn(fresh, 12), expected)


def test_state_of_another_number_of_pairs() -> None:
    with pytest.raises(ValueError, match="a sampler over 9 pairs, not 10"):
        PairSampler(make_pairs(10), 3).load_state_dict(PairSampler(make_pairs(9), 3).state_dict())


def test_the_state_of_something_else() -> None:
    with pytest.raises(
        ValueError, match=r"not the state of a PairSampler: missing or unknown \['iteration', 'order'\]"
    ):
        PairSampler(make_pairs(10), 4).load_state_dict({"generator": 0, "position": 0, "iteration": 3})


def test_a_state_that_was_loaded_to_a_device() -> None:
    class OnDevice:
        """A tensor that has to be fetched first."""

        def __init__(self, tensor: Tensor) -> None:
            self.cpu = lambda: tensor
            self.rows = len(tensor)

        def __len__(self) -> int:
            return self.rows

    there, here = PairSampler(make_pairs(10), 4), PairSampler(make_pairs(10), 4, seed=1)
    there.draw()
    moved = {
        name: OnDevice(value) if isinstance(value, Tensor) else value for name, value in there.state_dict().items()
    }
    here.load_state_dict(moved)
    assert torch.equal(here.draw().label, there.draw().label)


def test_members_stay_together() -> None:
    for pairs in islice(PairSampler(make_pairs(20), 6), 10):
        assert torch.allclose(pairs.first * 255, pairs.label.float().view(-1, 1, 1, 1).expand_as(pairs.first))
        assert torch.allclose(pairs.first + pairs.second, torch.ones_like(pairs.first))


def test_members_go_through_what_task_images_go_through() -> None:
    plain, scaled = (PairSampler(make_pairs(20), 6, transform=way) for way in (None, lambda images: 2 * images - 1))
    for before, after in islice(zip(plain, scaled, strict=True), 5):
        assert torch.equal(after.first, 2 * before.first - 1)
        assert torch.equal(after.second, 2 * before.second - 1)
        assert torch.equal(after.label, before.label)


def flip(images: Tensor) -> Tensor:
    return images.flip(-1) if torch.rand(()) < 0.5 else images


def brighten(images: Tensor) -> Tensor:
    return images + torch.rand(len(images), 1, 1, 1)


def by_python(images: Tensor) -> Tensor:
    return images.flip(-1) if random.random() < 0.5 else images


def by_numpy(images: Tensor) -> Tensor:
    return images + np.random.uniform()  # noqa: NPY002


@pytest.mark.parametrize("change", [flip, brighten, by_python, by_numpy])
def test_a_random_transform_is_the_same_for_both_members(change: Callable[[Tensor], Tensor]) -> None:
    images = torch.rand(6, 1, 3, 3)
    sampler = PairSampler(Pairs(images, images.clone(), torch.arange(6)), 6, transform=change)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    drawn = list(islice(sampler, 12))
    assert all(torch.equal(batch.first, batch.second) for batch in drawn)
    assert len({batch.first.sum(dim=0).numpy().tobytes() for batch in drawn}) > 1  # but not the same every time


def test_a_transform_that_draws_nothing_leaves_the_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    PairSampler(make_pairs(6), 4, transform=torch.neg).draw()
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_from_pairs_of_floats() -> None:
    floats = Pairs(torch.rand(5, 3), torch.rand(5, 3), torch.arange(5))
    batch = PairSampler(floats, 2).draw()
    assert torch.equal(batch.first, floats.first[batch.label])
    assert torch.equal(batch.second, floats.second[batch.label])


def test_sets_are_compared_as_objects() -> None:
    pairs = make_pairs(4)
    assert pairs == pairs
    assert pairs != make_pairs(4)


def test_one_pair_at_a_time() -> None:
    drawn = [int(pairs.label) for pairs in islice(PairSampler(make_pairs(4), 1), 8)]
    assert sorted(drawn[:4]) == sorted(drawn[4:]) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, 2.5, "8"])
def test_batch_size_that_is_no_number_of_pairs(size: Any) -> None:
    with pytest.raises(ValueError, match=f"batch_size={size!r} is out of range: expected a whole number, at least 1"):
        PairSampler(make_pairs(3), size)


def test_a_set_may_be_empty_but_not_be_drawn_from() -> None:
    empty = make_pairs(4).take(torch.arange(0))
    assert len(empty) == 0
    with pytest.raises(ValueError, match="there are no pairs to draw from"):
        PairSampler(empty, 2)


def test_what_are_no_pairs_is_not_drawn_from() -> None:
    with pytest.raises(
        TypeError, match=r"pairs must be an ipg\.PairSet or ipg\.Pairs\(first, second, label\), got list"
    ):
        PairSampler([(0, 0, 0)], 1)  # type: ignore[arg-type]
