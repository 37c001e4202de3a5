"""Tensors by split as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from ipg.data.errors import DataError
from ipg.data.tensors import as_bytes, table_of

IMAGES = torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2)
LABEL = torch.tensor([0, 1, 2, 1])


def test_splits_labels_and_attributes() -> None:
    test = (IMAGES[:2], LABEL[:2], torch.tensor([1, 0]))
    table = table_of({"test": test, "train": (IMAGES, LABEL, torch.zeros(4, dtype=torch.int32))})
    assert (table.splits, table.classes, table.attributes) == (("train", "test"), ("0", "1", "2"), ("0", "1"))
    assert torch.equal(table.part("train").images, IMAGES)
    assert torch.equal(table.part("test").label, LABEL[:2])
    assert table.part("test").attribute.tolist() == [1, 0]
    assert not table.environment.any()
    table = table_of({"train": (IMAGES, LABEL, LABEL, torch.tensor([0, 2, 1, 0]))})
    assert table.environment.tolist() == [0, 2, 1, 0]


def test_arrays_data_sets_and_other_names_of_splits() -> None:
    table = table_of({"train": TensorDataset(IMAGES, LABEL), "val": (IMAGES.numpy(), LABEL.numpy())})
    assert (table.splits, table.attributes) == (("train", "validation"), ("all",))
    assert torch.equal(table.part("train").images, table.part("validation").images)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("training", "val", "testing"), ("train", "validation", "test")),
        (("0", "1", "2"), ("train", "validation", "test")),
        (("Train", "DEV"), ("train", "validation")),
        (("train", "valid"), ("train", "validation")),
    ],
)
def test_what_people_call_splits(names: tuple[str, ...], splits: tuple[str, ...]) -> None:
    table = table_of({name: (IMAGES + number, LABEL) for number, name in enumerate(names)})
    assert table.splits == splits
    assert [int(table.part(split).images[0, 0, 0, 0]) for split in splits] == list(range(len(splits)))


class Items(Dataset[tuple[Any, ...]]):
    """A data set that knows one item at a time."""

    def __init__(self, *items: tuple[Any, ...]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return self.items[number]


class Endless(IterableDataset[tuple[Any, ...]]):
    """One without a length."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(())


def test_a_split_may_be_any_torch_data_set_with_a_length() -> None:
    items = Items(*((image / 255, int(label)) for image, label in zip(IMAGES, LABEL, strict=True)))
    with_attributes = Items(*((image, int(label), 0) for image, label in zip(IMAGES, LABEL, strict=True)))
    table = table_of({"train": Subset(TensorDataset(IMAGES, LABEL, LABEL), [2, 0]), "test": with_attributes})
    assert torch.equal(table.part("train").images, IMAGES[[2, 0]])
    assert table.part("train").attribute.tolist() == [2, 0]
    assert torch.equal(table.part("test").images, IMAGES)
    assert torch.equal(table_of({"train": items}).images, IMAGES)


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["cat", "dog", "owl"], ("cat", "dog", "owl")),
        (["cat", "dog", "owl", "yak"], ("0", "1", "2")),  # it may be that two of them were joined
        (["cat", "dog"], ("0", "1", "2")),
        (["cat", "dog", "dog"], ("0", "1", "2")),
        ("cat", ("0", "1", "2")),
    ],
)
def test_classes_have_the_names_that_a_data_set_gives_them(names: Any, classes: tuple[str, ...]) -> None:
    items = Items(*((image, int(label)) for image, label in zip(IMAGES, LABEL, strict=True)))
    items.classes = names  # type: ignore[attr-defined]
    assert table_of({"train": items, "test": (IMAGES, LABEL)}).classes == classes
    assert table_of({"train": Subset(Subset(items, range(len(items))), range(len(items)))}).classes == classes
    items.target_transform = abs  # type: ignore[attr-defined]
    assert table_of({"train": items}).classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Items((IMAGES[0], 0), (IMAGES[0, :, :1], 1)), "the items of train .Items. must be .*tensors of one shape"),
        (Items((object(), 0)), "the items of train .Items. must be .*image, label"),
        (Endless(), "train .Endless. has no length"),
    ],
)
def test_data_sets_that_are_no_images_and_labels_are_refused(split: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table_of({"train": split})


def test_floats_become_the_nearest_bytes() -> None:
    assert torch.equal(as_bytes(IMAGES.float() / 255, "images"), IMAGES)  # as `/ 255` made them
    values = torch.tensor([0.0, 0.001, 0.003, 0.5, 1.0]).view(5, 1, 1, 1)
    assert as_bytes(values, "images").flatten().tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"test": (IMAGES, LABEL)}, r'nothing to train on: expected \{"train": \(images, labels\)'),
        ({"train": (IMAGES, LABEL), "extra": (IMAGES, LABEL)}, "no split called 'extra'"),
        ({"train": (IMAGES, LABEL), "val": (IMAGES, LABEL), "validation": (IMAGES, LABEL)}, "two names stand for one"),
        ({"train": IMAGES}, r"train must be \(images, labels\) or"),
        ({"train": (IMAGES, LABEL[:3])}, r"train labels must be of shape \(4,\), one an image, got \(3,\)"),
        ({"train": (IMAGES, LABEL.float())}, r"train labels must be whole numbers, got torch\.float32; use \.long"),
        ({"train": (IMAGES, ["cat", "dog"] * 2)}, "train labels must be .* of numbers, got a list of str; number them"),
        ({"train": (IMAGES, np.array(["a"] * 4))}, "train labels must be .* got a ndarray of <U1; number them from 0"),
        (
            {"train": (list(IMAGES), LABEL)},
            "train images must be .*, got a list of Tensor; torch.stack makes",
        ),
        ({"train": (["a.png"] * 4, LABEL)}, "got a list of str; .* files go in as a folder or a table"),
        ({"train": (IMAGES, LABEL - 1)}, "train labels must be numbered from 0, got -1"),
        ({"train": (IMAGES, LABEL * 0 + 2)}, "every image has the label 2; a classifier needs two classes or more"),
        (
            {"train": (torch.zeros(4, 8, 8, 3), LABEL)},
            r"\(4, 8, 8, 3\) with the channels last; use .*permute\(0, 3, 1, 2\)",
        ),
        ({"train": (IMAGES[0], LABEL)}, r"train images must be of shape \(N, C, H, W\), got \(3, 2, 2\)"),
        ({"train": (IMAGES.float(), LABEL)}, "floats from 0 to 1, got 0 to 47; leave a normalisation to the network"),
        ({"train": (IMAGES.long(), LABEL)}, r"bytes \(uint8\) or floats from 0 to 1, got torch\.int64"),
        ({"train": (IMAGES, LABEL), "test": (IMAGES, LABEL, LABEL)}, "some splits have attributes and others"),
        ({"train": (IMAGES, LABEL, LABEL, LABEL), "test": (IMAGES, LABEL, LABEL)}, "some splits have environments and"),
        ({"train": (IMAGES, *[LABEL] * 4)}, "perhaps with environments after them, got 5 of them"),
        ({"train": (IMAGES, LABEL), "test": (IMAGES[:, :1], LABEL)}, r"need one shape, got train \(3, 2, 2\) and test"),
    ],
)
def test_what_does_not_fit_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table_of(data)
