"""Disagreement on pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.evaluation.pairs import pair_disagreement, pair_metrics
from ipg.evaluation.statistics import counted
from ipg.pairs.pairset import PairSet


class Brightest(nn.Module):
    """Says which of the two channels is brighter."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def pair_set(first: list[int], second: list[int]) -> PairSet:
    """Pairs whose members are bright in the given channels."""

    def images(channels: list[int]) -> Tensor:
        made = torch.zeros(len(channels), 2, 3, 3, dtype=torch.uint8)
        made[torch.arange(len(channels)), torch.tensor(channels)] = 200
        return made

    n = len(first)
    label = torch.zeros(n, dtype=torch.int64)
    return PairSet(images(first), images(second), label, torch.zeros(n, 2, dtype=torch.int64), "validation", "toy")


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ([0, 1, 0, 1], [0, 1, 0, 1], 0.0),
        ([0, 1, 0], [1, 0, 1], 1.0),
        ([0, 0, 0, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1, 1, 1, 1, 0], 0.7),
    ],
)
def test_share_of_pairs_that_are_told_apart(first: list[int], second: list[int], share: float) -> None:
    assert pair_disagreement(Brightest(), pair_set(first, second)) == share


def test_no_pairs() -> None:
    assert pair_disagreement(Brightest(), None) is None


FIRST, SECOND = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 0])
LABELS = ["dog", "dog", "cat", "dog"]


def test_disagreement_and_accuracy_by_label() -> None:
    metrics = pair_metrics(FIRST, SECOND, LABELS, classes=("dog", "cat"))
    assert metrics["disagreement"] == counted(2, 4)
    assert metrics["first_right"] == counted(3, 4)  # the last of them is a dog that passes for a cat
    assert metrics["second_right"] == counted(3, 4)
    assert metrics["labels"] == {
        "dog": {"disagreement": counted(2, 3), "first_right": counted(2, 3), "second_right": counted(2, 3)},
        "cat": {"disagreement": counted(0, 1), "first_right": counted(1, 1), "second_right": counted(1, 1)},
    }
    assert list(metrics["labels"]) == ["dog", "cat"]


def test_without_names_of_classes_nobody_is_right() -> None:
    metrics = pair_metrics(FIRST, SECOND, LABELS, classes=None)
    assert metrics["disagreement"] == counted(2, 4)
    assert metrics["first_right"] is metrics["second_right"] is None
    assert metrics["labels"]["cat"] == {"disagreement": counted(0, 1), "first_right": None, "second_right": None}


def test_a_class_without_pairs_has_no_line() -> None:
    assert list(pair_metrics(FIRST, SECOND, LABELS, classes=("dog", "cat", "owl"))["labels"]) == ["dog", "cat"]
