"""Batches by index: every image once a pass, in an order that can be made again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
import torch

from ipg.data.augment import Augmentation
from ipg.data.batches import Batches, Sampling
from ipg.data.table import ImageTable


@pytest.fixture(scope="module")
def table(make_table: Callable[..., ImageTable]) -> ImageTable:
    return make_table(train=50, validation=0, test=0)


def order(batches: Batches, epoch: int) -> list[int]:
    return torch.cat(list(batches.rows(epoch))).tolist()


@pytest.mark.parametrize(
    ("size", "sizes"), [(16, [16, 16, 16, 2]), (25, [25, 25]), (50, [50]), (80, [50]), (1, [1] * 50)]
)
def test_every_image_once_a_pass(table: ImageTable, size: int, sizes: list[int]) -> None:
    batches = Batches(table, size, seed=0)
    assert [len(rows) for rows in batches.rows(0)] == sizes
    assert len(batches) == len(sizes)
    assert sorted(order(batches, 0)) == list(range(50))


def test_the_order_is_a_function_of_seed_and_pass(table: ImageTable) -> None:
    one = Batches(table, 16, seed=3)
    later = order(one, 5)
    assert order(one, 0) != later
    assert order(one, 5) == later  # whatever was drawn before
    assert order(Batches(table, 16, seed=3), 5) == later
    assert order(Batches(table, 16, seed=4), 5) != later
    assert order(Batches(table, 7, seed=3), 5) == later  # and not of the batch size


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_a_pass_goes_on_in_the_middle(table: ImageTable, start: int) -> None:
    batches = Batches(table, 16, seed=3)
    whole = [rows.tolist() for rows in batches.rows(2)]
    assert [rows.tolist() for rows in batches.rows(2, start=start)] == whole[start:]


@pytest.mark.parametrize("streamed", [False, True])
def test_epochs_of_as_many_steps_as_asked_for(table: ImageTable, streamed: bool) -> None:
    """Four batches a pass and three an epoch: the passes go on from epoch to epoch, in the order that they have."""
    batches = Batches(table, 16, seed=3, steps=3)
    batches.streamed = streamed
    assert len(batches) == 3
    epochs = [[rows.tolist() for rows in batches.rows(epoch)] for epoch in range(4)]
    passes = [[rows.tolist() for rows in Batches(table, 16, seed=3).rows(turn)] for turn in range(3)]
    assert [*chain(*epochs)] == [*chain(*passes)]
    assert [rows.tolist() for rows in batches.rows(2, start=1)] == epochs[2][1:]


def test_full_batches(table: ImageTable) -> None:
    batches = Batches(table, 50, seed=3, steps=4)
    assert [sorted(rows.tolist()) for rows in batches.rows(0)] == [list(range(50))] * 4


def test_the_global_generator_is_left_alone(table: ImageTable) -> None:
    before = torch.get_rng_state()
    list(Batches(table, 16, seed=3).rows(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_columns_of_a_batch(table: ImageTable) -> None:
    rows = torch.tensor([7, 2, 31])
    batch = Batches(table, 16, seed=0).take(rows)
    assert batch.image.dtype == torch.float32
    assert torch.equal((batch.image * 255).round().to(torch.uint8), table.images[rows])
    assert batch.image.max() <= 1
    assert batch.label.tolist() == table.label[rows].tolist()
    assert batch.group.tolist() == (2 * table.label[rows] + table.attribute[rows]).tolist()
    assert batch.environment.tolist() == table.environment[rows].tolist()
    assert batch.row.tolist() == rows.tolist()


def test_nothing_to_train_on(make_table: Callable[..., ImageTable]) -> None:
    with pytest.raises(ValueError, match="bars: there is no image to train on"):
        Batches(make_table(train=0).part("train"), 16, seed=0)


def test_streamed_images_are_those_of_the_rows(table: ImageTable) -> None:
    """As where images stay in memory while labels lie on a GPU: gathered ahead by a thread, placed before use."""
    plain, streamed = (Batches(table, 16, seed=3) for _ in range(2))
    streamed.streamed = True
    for epoch, start in ((0, 0), (1, 2), (2, 0)):
        count = 0
        for expected, rows in zip(plain.rows(epoch, start=start), streamed.rows(epoch, start=start), strict=True):
            assert torch.equal(rows, expected)
            for one, other in zip(streamed.take(rows), plain.take(expected), strict=True):
                assert torch.equal(one, other)
            count += 1
        assert count == 4 - start


def test_a_stream_that_is_left_early_is_begun_anew(table: ImageTable) -> None:
    batches = Batches(table, 16, seed=3)
    batches.streamed = True
    for _ in batches.rows(0):
        break
    rows = next(iter(batches.rows(1)))
    assert torch.equal(batches.take(rows).image, table.images[rows].float() / 255)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_share_of_a_process(table: ImageTable, streamed: bool) -> None:
    found = []
    for index in range(2):
        batches = Batches(table, 16, seed=3, share=lambda rows, index=index: rows.tensor_split(2)[index])
        batches.streamed = streamed
        found.append([(rows, batches.take(rows).image.clone()) for rows in batches.rows(0)])
    whole = Batches(table, 16, seed=3)
    for (one, first), (two, second), rows in zip(*found, whole.rows(0), strict=True):
        assert torch.equal(torch.cat([one, two]), rows)
        assert torch.equal(torch.cat([first, second]), whole.take(rows).image)


def test_views_are_drawn_of_training_images(table: ImageTable) -> None:
    plain = Batches(table, 16, seed=3)
    mirrored = Batches(table, 16, seed=3, augmentation=Augmentation(flip=True))
    rows = next(iter(plain.rows(0)))
    before = plain.take(rows).image
    torch.manual_seed(0)
    after = mirrored.take(rows).image
    same = [torch.allclose(a, b, atol=1e-5) for a, b in zip(after, before, strict=True)]
    turned = [torch.allclose(a, b.flip(-1), atol=1e-5) for a, b in zip(after, before, strict=True)]
    assert all(a or b for a, b in zip(same, turned, strict=True))
    assert any(same)
    assert any(turned)


def test_a_pass_over_some_rows_alone(table: ImageTable) -> None:
    rows = torch.tensor([3, 7, 11, 40, 41])
    batches = Batches(table, 2, seed=3, sampling=Sampling(rows=rows))
    assert len(batches) == 3
    assert sorted(order(batches, 0)) == rows.tolist()
    assert order(batches, 0) != order(batches, 1)


def test_a_pass_drawn_by_weights(table: ImageTable) -> None:
    weights = torch.zeros(50)
    weights[:10], weights[10] = 1.0, 30.0
    batches = Batches(table, 16, seed=3, sampling=Sampling(weights=weights))
    drawn = torch.tensor([row for epoch in range(40) for row in order(batches, epoch)])
    assert len(batches) == 4
    assert len(drawn) == 40 * 50
    assert set(drawn.tolist()) == set(range(11))  # with replacement, and never one of weight 0
    assert (drawn == 10).float().mean().item() == pytest.approx(0.75, abs=0.04)
    assert order(batches, 5) == order(Batches(table, 7, seed=3, sampling=Sampling(weights=weights)), 5)
