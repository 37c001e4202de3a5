"""What moved, on rows made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ipg.benchmarks.against import compare_rows, require


def made(case: str, value: float, ratio: float | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "benchmark": "steps",
        "case": case,
        "value": value,
        "unit": "ms",
        "baseline": None if ratio is None else "erm",
        "ratio": ratio,
        "low": value,
        "high": value,
        "hardware": "here",
        **changes,
    }


def test_a_change_within_the_range_of_the_repeats_is_noise() -> None:
    now = [made("erm", value) for value in (10.0, 12.1, 11.0)]  # half the range: 10 % either way, doubled 21 %
    (change,) = compare_rows(now, [made("erm", 13.0)]).changes
    assert change.now == 11.0
    assert change.noise == pytest.approx(1.21)
    assert not change.moved
    (change,) = compare_rows(now, [made("erm", 13.5)]).changes
    assert change.moved
    assert not change.worse


def test_the_rows_quartiles_are_noise_too() -> None:
    now = [made("erm", 11.5)] * 3
    steady, shaky = made("erm", 10.0), made("erm", 10.0, low=9.0, high=11.0)
    assert [change.case for change in compare_rows(now, [steady]).moved] == ["erm"]
    (change,) = compare_rows(now, [shaky]).changes
    assert change.noise == pytest.approx(11 / 9)  # half the distance, doubled
    assert not change.moved


def test_both_noises_add_as_independent_ones_do() -> None:
    now = [made("erm", 10.0), made("erm", 12.1), made("erm", 11.0)]
    (change,) = compare_rows(now, [made("erm", 10.0, low=9.0, high=11.0)]).changes
    assert math.log(change.noise) == pytest.approx(2 * math.hypot(math.log(1.21) / 2, math.log(11 / 9) / 2))


def test_less_than_three_per_cent_is_never_worth_a_word() -> None:
    assert compare_rows([made("erm", 10.29)] * 2, [made("erm", 10.0)]).moved == ()
    assert len(compare_rows([made("erm", 10.31)] * 2, [made("erm", 10.0)]).moved) == 1


def test_a_ratio_counts_where_there_is_one() -> None:
    kept = [made("erm", 10.0), made("ipg", 15.0, 1.5)]
    slow_machine = [made("erm", 20.0), made("ipg", 30.0, 1.5)] * 3
    comparison = compare_rows(slow_machine, kept)
    assert [change.case for change in comparison.moved] == ["erm"]
    (_, change) = comparison.changes
    assert (change.then, change.now, change.unit, change.baseline) == (1.5, 1.5, "", "erm")


@pytest.mark.parametrize(("unit", "now", "worse"), [("ms", 20.0, True), ("images/s", 20.0, False), ("MiB", 5.0, False)])
def test_which_way_is_worse_is_told_by_the_unit(unit: str, now: float, worse: bool) -> None:
    (change,) = compare_rows([made("a", now, unit=unit)] * 2, [made("a", 10.0, unit=unit)]).moved
    assert change.worse is worse


def test_the_worst_come_first() -> None:
    kept = [made(case, 10.0) for case in "abcd"]
    now = [made(case, value) for case, value in zip("abcd", (5.0, 12.0, 20.0, 10.0), strict=True)] * 2
    assert [change.case for change in compare_rows(now, kept).moved] == ["c", "b", "a"]


def test_the_newest_row_of_this_machine_is_compared_with() -> None:
    kept = [made("erm", 1.0), made("erm", 10.0), made("erm", 99.0, hardware="there")]
    (change,) = compare_rows([made("erm", 10.0)] * 2, kept).changes
    assert change.then == 10.0


def test_new_and_gone_cases_are_named_and_other_benchmarks_left_alone() -> None:
    kept = [made("erm", 1.0), made("old", 1.0), made("a", 1.0, benchmark="startup")]
    comparison = compare_rows([made("erm", 1.0), made("young", 1.0)] * 2, kept)
    assert comparison.new == (("steps", "young", "ms", None),)
    assert comparison.gone == (("steps", "old", "ms", None),)
    assert len(comparison.changes) == 1


def test_a_machine_without_a_row_is_refused_with_the_remedy() -> None:
    require([made("erm", 1.0)], "here")
    with pytest.raises(ValueError, match=r"no row is of this machine \(elsewhere\); rows are of: here.*--threads"):
        require([made("erm", 1.0)], "elsewhere")
    with pytest.raises(ValueError, match="rows are of: none"):
        require([], "elsewhere")
