"""Intervals against the values that Newcombe published, and against their definition."""

from __future__ import annotations

import math

import pytest

from ipg.evaluation.statistics import Interval, at_chance, counted, difference, lowest, wilson


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_as_published(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == pytest.approx((low, high), abs=5e-5)  # Newcombe 1998, method 3


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
    ],
)
def test_the_difference_is_as_published(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    assert difference(first, second) == pytest.approx((low, high), abs=5e-5)  # Newcombe 1998, method 10


@pytest.mark.parametrize("confidence", [0.5, 0.99])
def test_both_intervals_of_a_difference_have_its_confidence(confidence: float) -> None:
    """Its ends lie as far off as the ends of both are together, at a right angle."""
    first, second = wilson(3, 11, confidence=confidence), wilson(9, 14, confidence=confidence)
    low, high = difference((3, 11), (9, 14), confidence=confidence)
    middle = 3 / 11 - 9 / 14
    assert (middle - low) ** 2 == pytest.approx((3 / 11 - first.low) ** 2 + (second.high - 9 / 14) ** 2)
    assert (high - middle) ** 2 == pytest.approx((first.high - 3 / 11) ** 2 + (9 / 14 - second.low) ** 2)


def test_the_ends_of_an_interval_are_where_the_score_test_just_rejects() -> None:
    hits, total, z = 7, 40, 1.959963984540054
    for end in wilson(hits, total):
        assert abs(hits / total - end) / math.sqrt(end * (1 - end) / total) == pytest.approx(z, abs=1e-9)


def test_all_or_nothing_ends_at_the_very_end() -> None:
    z2 = 1.959963984540054**2
    assert wilson(0, 10) == pytest.approx((0, z2 / (10 + z2)), abs=1e-12)
    assert wilson(10, 10) == pytest.approx((10 / (10 + z2), 1), abs=1e-12)
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == 1


def test_symmetries() -> None:
    low, high = wilson(3, 11)
    assert wilson(8, 11) == pytest.approx((1 - high, 1 - low))
    low, high = difference((3, 11), (9, 14))
    assert difference((9, 14), (3, 11)) == pytest.approx((-high, -low))
    assert difference((3, 11), (3, 11)).low < 0 < difference((3, 11), (3, 11)).high


def test_more_confidence_is_wider() -> None:
    narrow, wide = wilson(3, 11, confidence=0.5), wilson(3, 11, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_guessing_is_within_two_standard_errors_of_chance() -> None:
    """Of 100 images and two classes an error is 5 points; of three classes 4.7."""
    assert [at_chance(share, 2, 100) for share in (0.39, 0.41, 0.5, 0.59, 0.61)] == [False, True, True, True, False]
    assert [at_chance(share, 3, 100) for share in (0.42, 0.43, 0.5)] == [True, False, False]
    assert not at_chance(0.59, 2, 1000)


@pytest.mark.parametrize(
    ("shares", "place"),
    [
        ([(0.9, 10), (0.4, 10), (0.5, 2)], 1),
        ([(0.0, 2), (0.0, 60), (1.0, 9)], 1),  # 60 of 60 wrong say more than 2 of 2
        ([(1.0, 60), (1.0, 2)], 1),  # 2 of 2 right say less than 60 of 60
        ([(0.5, 8), (0.5, 8)], 0),
        ([(None, 0), (0.3, 0), (0.7, 5)], 2),
        ([(None, 0)], None),
        ([], None),
    ],
)
def test_the_lowest_share_is_of_equal_ones_that_of_the_lowest_interval(
    shares: list[tuple[float | None, int]], place: int | None
) -> None:
    assert lowest(shares) == place


def test_what_results_hold() -> None:
    assert counted(1, 4) == {"share": 0.25, "low": wilson(1, 4).low, "high": wilson(1, 4).high, "count": 4}
    assert counted(0, 0) == {"share": None, "low": None, "high": None, "count": 0}
    assert isinstance(wilson(1, 4), Interval)


@pytest.mark.parametrize(("hits", "total"), [(0, 0), (5, 4), (-1, 4)])
def test_what_is_no_share_is_refused(hits: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(hits, total)


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_what_is_no_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson(1, 4, confidence=confidence)
