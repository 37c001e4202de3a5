"""Small things that sentences are made of."""

from __future__ import annotations

import pytest

from ipg.words import bytes_in_words, did_you_mean, ranges, times


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 0], "0 and 1"),
        (range(10), "0 to 9"),
        ([9, 0, 2, 5, 6, 7, 8], "0, 2 and 5 to 9"),
        ([0, 1, 3, 4, 5, 0], "0, 1 and 3 to 5"),
    ],
)
def test_ranges(numbers: list[int], expected: str) -> None:
    assert ranges(numbers) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "1 byte"), (999, "999 bytes"), (1_000, "1.0 kB"), (12_345, "12 kB"), (8_570_000, "8.6 MB"),
        (1.84e9, "1.8 GB"), (30e9, "30 GB"), (2.5e12, "2,500 GB"),
    ],
)  # fmt: skip
def test_sizes(number: float, expected: str) -> None:
    assert bytes_in_words(number) == expected


def test_how_often() -> None:
    assert [times(number) for number in (1, 2, 1_000)] == ["once", "2 times", "1,000 times"]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("IPG", ["erm", "ipg"], "did you mean ipg?"),
        ("dia", ["erm", "dair", "dfr"], "did you mean dair?"),
        ("schematc", ["theory", "schematic"], "did you mean schematic?"),
        ("male", ["Young", "Male"], "did you mean Male?"),
        ("xyz", ["erm", "ipg"], ""),
    ],
)
def test_what_may_be_meant(name: str, known: list[str], expected: str) -> None:
    assert did_you_mean(name, known) == expected
