from __future__ import annotations

import pytest

from ipg.evaluation.statistics import Interval
from ipg.report import views

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.98352, 1, "98.4"),
        (0.11, 0, "11"),
        (0.985, 0, "98"),
        (1.0, 0, "100"),
        (0.0, 0, "0"),
        (0.996, 0, "99.6"),  # not 100
        (0.004, 0, "0.4"),  # not 0
    ],
)
def test_percent(value: float, digits: int, expected: str) -> None:
    assert views.percent(value, digits) == f"{expected}\N{NO-BREAK SPACE}%"


def test_percent_of_nothing_is_a_dash() -> None:
    assert views.percent(None) == "–"


@pytest.mark.parametrize("value", [None, NAN, float("inf"), "0.5", True, {}])
def test_number_refuses(value: object) -> None:
    assert views.number(value) is None


def test_number_accepts() -> None:
    assert views.number(3) == 3.0
    assert views.number(0.25) == 0.25


def test_metrics_are_those_of_the_selected_epoch_else_the_last(run) -> None:
    assert run(green=0.5).metrics["worst_group"] == 0.5
    assert run(result={"last_metrics": {"average": 0.3}}).metrics == {"average": 0.3}
    unfinished = run(result={}).metrics
    assert unfinished["average"] == pytest.approx(0.3)
    assert unfinished["pair_disagreement"] == 0.75
    assert run(result={}, epochs=[]).metrics == {}


def test_series_of_the_compared_runs_and_of_the_rest(run) -> None:
    roles = ["reference", "before", "after", "after", *["reference"] * 5]
    assert views.series([run(role=role) for role in roles]) == (
        "other-1", "before", "after", "other-2", "other-3", "other-4", "other-5", "other-6", "other-1",
    )  # fmt: skip


def test_disagreement_is_as_measured_after_training_else_as_counted(run) -> None:
    counted = views.PairAnswers(total=8, changed=2, both_right=5)
    assert run(disagreement=0.75, pairs=counted).disagreement == 0.75
    assert run(disagreement=None, pairs=counted).disagreement == 0.25
    assert run(disagreement=None).disagreement is None


def test_interval_of_a_share() -> None:
    low, high = views.share_interval(0.5, 10)
    assert (low, high) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Wilson, 5 of 10
    assert views.share_interval(None, 10) is None
    assert views.share_interval(0.5, None) is None
    assert views.share_interval(0.5, 0) is None


def test_span() -> None:
    assert views.span(Interval(0.917, 0.99)) == "91.7–99.0"
    assert views.span(Interval(-0.02, 0.1)) == "−2.0 to 10.0"
    assert views.span(None) == ""
