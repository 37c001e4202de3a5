"""AUROC and calibration error against hand numbers and their definitions, one pair or image at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ipg.evaluation.confidence import BINS, calibration_error, confidence_metrics


def naive_area(scores: list[float], inside: list[bool]) -> float | None:
    """The definition: every image of the class against every other."""
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, mine in zip(scores, inside, strict=True)
        for b, other in zip(scores, inside, strict=True)
        if mine and not other
    ]
    return math.fsum(wins) / len(wins) if wins else None


def naive_error(logits: list[list[float]], labels: list[int]) -> float:
    """The definition, image by image in Python's own numbers."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(logits, labels, strict=True):
        weights = [math.exp(value - max(row)) for value in row]
        confidence = max(weights) / math.fsum(weights)
        number = next(b for b in range(1, BINS + 1) if confidence * BINS <= b)
        bins.setdefault(number, []).append((confidence, row.index(max(row)) == label))
    parts = []
    for members in bins.values():
        right = sum(hit for _, hit in members) / len(members)
        parts.append(len(members) / len(labels) * abs(right - math.fsum(c for c, _ in members) / len(members)))
    return math.fsum(parts)


@pytest.mark.parametrize("seed", range(4))
def test_two_classes_against_the_definitions(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(80, 2, generator=generator).mul(3).round()  # rounded: there are ties
    labels = torch.randint(2, (80,), generator=generator)
    found = confidence_metrics(logits, labels)
    scores = (logits[:, 1] - logits[:, 0]).tolist()
    assert found["auroc"] == pytest.approx(naive_area(scores, (labels == 1).tolist()), rel=1e-12)
    assert found["calibration_error"] == pytest.approx(naive_error(logits.tolist(), labels.tolist()), rel=1e-10)


@pytest.mark.parametrize("absent", [None, 2])
def test_more_classes_are_one_against_the_rest(absent: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 4, generator=generator)
    labels = torch.randint(4, (60,), generator=generator)
    if absent is not None:
        labels[labels == absent] = 0
    probability = logits.double().softmax(1)
    areas = [naive_area(probability[:, k].tolist(), (labels == k).tolist()) for k in range(4)]
    known = [area for area in areas if area is not None]
    assert len(known) == (4 if absent is None else 3)
    found = confidence_metrics(logits, labels)
    assert found["auroc"] == pytest.approx(sum(known) / len(known), rel=1e-12)
    assert found["calibration_error"] == pytest.approx(naive_error(logits.tolist(), labels.tolist()), rel=1e-10)


def test_area_by_hand() -> None:
    """Positives at 3 and 1 against negatives at 2 and 1: three wins of four pairs but for one tie, 2.5 / 4."""
    logits = torch.tensor([[0.0, 3], [0, 1], [0, 2], [0, 1]])
    assert confidence_metrics(logits, torch.tensor([1, 1, 0, 0]))["auroc"] == 2.5 / 4


def test_calibration_by_hand() -> None:
    """Four images at 0.75, of which half are right: 0.25 off; two at 0.55, all right: 0.45 off."""
    high, low = [0.25, 0.75], [0.55, 0.45]
    probability = torch.tensor([high, high, high, high, low, low], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0, 0, 0, 0])
    assert calibration_error(probability, labels) == pytest.approx((4 * 0.25 + 2 * 0.45) / 6, rel=1e-12)


def test_a_bin_has_its_upper_end() -> None:
    """With two bins 0.5 belongs to the lower: apart it is 0.5 off, together with 0.9 the two would cancel in part."""
    probability = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    labels = torch.tensor([0, 0])  # right at 0.5, wrong at 0.9
    assert calibration_error(probability, labels, bins=2) == pytest.approx((0.5 + 0.9) / 2)


def test_a_single_logit_is_that_of_the_second_class() -> None:
    logits = torch.tensor([[2.0], [-1.0], [0.5]])
    labels = torch.tensor([1, 0, 0])
    both = torch.cat([torch.zeros(3, 1), logits], dim=1)
    assert confidence_metrics(logits, labels) == confidence_metrics(both, labels)


@pytest.mark.parametrize("logits", [torch.empty(0, 2), torch.tensor([[0.0, math.nan]]), torch.tensor([[math.inf, 0]])])
def test_nothing_to_tell_by(logits: Tensor) -> None:
    labels = torch.zeros(len(logits), dtype=torch.int64)
    assert confidence_metrics(logits, labels) == {"auroc": None, "calibration_error": None}


def test_one_class_alone_has_no_area() -> None:
    found = confidence_metrics(torch.tensor([[4.0, 0], [0, 4]]), torch.tensor([0, 0]))
    assert found["auroc"] is None
    assert found["calibration_error"] == pytest.approx(1 / (1 + math.exp(-4)) - 0.5)


def test_half_precision_is_computed_in_double() -> None:
    logits = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.arange(40) % 2
    assert confidence_metrics(logits, labels) == confidence_metrics(logits.double(), labels)
