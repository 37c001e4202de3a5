"""Disagreement on pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.evaluation.pairs import pair_disagreement
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
