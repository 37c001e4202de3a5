"""Medians, quartiles and ratios, worked out by hand."""

from __future__ import annotations

from ipg.benchmarks.measure import compare, quartiles, take_turns


def test_cases_take_turns_and_each_round_begins_with_another() -> None:
    order: list[str] = []

    def noting(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = take_turns({name: lambda name=name: noting(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert order == list("abcbcacab")
    assert found == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0]}


def test_a_ratio_is_the_median_over_rounds_not_that_of_medians() -> None:
    plain, guided = compare(
        "steps",
        {"erm": [1.0, 2.0, 4.0], "ipg": [3.0, 2.0, 8.0]},
        unit="ms",
        baselines={"ipg": "erm"},
        ideals={"ipg": 1.5},
    )
    assert (plain.value, plain.ratio, plain.ideal, plain.rounds) == (2.0, None, None, 3)
    assert (guided.value, guided.ratio, guided.ideal) == (3.0, 2.0, 1.5)  # 3, 1 and 2
    assert (guided.low, guided.high) == (2.5, 5.5)


def test_a_case_may_have_several_baselines() -> None:
    found = compare("loops", {"a": [6.0], "b": [2.0], "c": [3.0]}, unit="images/s", baselines={"a": ("b", "c")})
    assert [(one.case, one.baseline, one.ratio) for one in found] == [
        ("a", "b", 3.0),
        ("a", "c", 2.0),
        ("b", None, None),
        ("c", None, None),
    ]


def test_quartiles() -> None:
    assert quartiles([5.0, 1.0, 4.0, 2.0, 3.0]) == (2.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0)
