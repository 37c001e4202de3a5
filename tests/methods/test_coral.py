"""CORAL against pairs of environments, each with its own mean and covariance."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.data.batches import Batch


def pairwise(features: Tensor, logits: Tensor, batch: Batch, head: nn.Linear) -> Tensor:
    """The mean over pairs of environments of the differences of means and covariances."""
    parts = [features[batch.environment == which] for which in batch.environment.unique()]
    terms = []
    for one, other in combinations(parts, 2):
        means = (one.mean(dim=0) - other.mean(dim=0)).pow(2).mean()
        covariances = (torch.cov(one.T) - torch.cov(other.T)).pow(2).mean()
        terms.append(means + covariances)
    return torch.stack(terms).mean()


def test_against_the_naive_form(descends: Any) -> None:
    assert min(descends("coral", pairwise, weight=2.0)) > 1e-4


def features(rows: list[list[float]], environment: list[int]) -> Batch:
    label = torch.zeros(len(rows), dtype=torch.int64)
    return Batch(torch.tensor(rows, dtype=torch.float64), label, label, torch.tensor(environment), label)


def test_a_pinned_value(toy: Any) -> None:
    """Means (0, 0) and (1, 2): 5/2. Covariances diag(2, 0) and diag(0, 2): 8/4."""
    batch = features([[1, 0], [1, 1], [-1, 0], [1, 3]], [0, 1, 0, 1])
    values = toy.method("coral", nn.Linear(2, 2).double()).step(batch)
    assert values["penalty"].item() == pytest.approx(4.5, abs=1e-13)


def test_a_single_image_has_no_covariance(toy: Any) -> None:
    batch = features([[1, 0], [-1, 0], [5, 5]], [0, 0, 1])
    assert toy.method("coral", nn.Linear(2, 2).double()).step(batch)["penalty"].item() == 0.0
