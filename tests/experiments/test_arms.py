"""Which trials are one run, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ipg.experiments.arms import arms_of, run_of, same_run
from ipg.experiments.study import Study, Trial
from ipg.experiments.trial import run_trial

pytestmark = pytest.mark.usefixtures("one_thread", "bars")
MEASURED = ("metrics", "last_metrics", "predictions", "selected_epoch")
AS_IPG = [
    ("continuous", {"tau": 0.5, "strict": True}),
    ("ipg_ablated", {"tau": 0.0}),
    ("ipg_ablated", {"options": {"reach": 1}}),
]


@pytest.mark.parametrize(("method", "changes"), AS_IPG)
def test_methods_that_come_to_ipg_share_its_rows_to_the_bit(
    trial: Callable[..., Trial], method: str, changes: dict[str, Any]
) -> None:
    plain, other = trial("ipg", learning_rate=1e-2), trial(method, learning_rate=1e-2, **changes)
    rows = [run_trial(plain), run_trial(other)]
    assert [rows[0][name] for name in MEASURED] == [rows[1][name] for name in MEASURED]
    assert same_run(rows[0], other)
    assert same_run(rows[1], plain)
    assert run_of(plain) == run_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ipg", {"tau": 0.5}), ("continuous", {"tau": 0.5})),
        (("ipg", {"strict": True}), ("continuous", {})),
        (("ipg", {}), ("ipg_ablated", {"options": {"reach": 0.5}})),
        (("continuous", {}), ("ipg_ablated", {"tau": 0.5})),
        (("ipg", {}), ("erm", {})),
    ],
)
def test_other_settings_part_them(trial: Callable[..., Trial], one: Any, other: Any) -> None:
    first, second = (trial(method, **changes) for method, changes in (one, other))
    assert not same_run(as_row(first), second)
    assert not same_run(as_row(second), first)
    assert run_of(first) != run_of(second)


def test_ablated_rows_from_before_an_option_are_ipg_where_nothing_else_is_ablated(trial: Callable[..., Trial]) -> None:
    row = as_row(trial("ipg_ablated", options={"corrupted": 0.0}))
    assert "reach" not in row["config"]
    assert same_run(row, trial("ipg"))
    assert not same_run(as_row(trial("ipg_ablated", options={"corrupted": 0.1})), trial("ipg"))


def test_in_a_study_a_row_stays_with_its_method(trial: Callable[..., Trial]) -> None:
    """Even under another key than the study's."""
    trials = (trial("ipg"), trial("continuous"))
    rows = [{**as_row(one), "key": "of before"} for one in trials]
    arms, left = arms_of(Study("small", trials, "test"), rows)
    assert [arm.rows[0]["method"] for arm in arms] == ["ipg", "continuous"]
    assert left == []


def as_row(trial: Trial) -> dict[str, Any]:
    return {**trial.identity, "config": trial.config.flat(), "split": "test"}
