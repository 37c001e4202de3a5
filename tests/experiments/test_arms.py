"""Which trials are one run, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ipg.config import RunConfig
from ipg.experiments.arms import OF_CORRECTIONS, OF_RESCALING, arms_of, run_of, same_run
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


def test_rows_from_before_an_option_are_of_its_default(trial: Callable[..., Trial]) -> None:
    row = as_row(trial("dfr", options={"draws": 10}))
    assert "share" not in row["config"]
    assert same_run(row, trial("dfr"))
    assert same_run(row, trial("dfr", options={"share": 1.0}))
    assert not same_run(row, trial("dfr", options={"share": 0.5}))


def test_in_a_study_a_row_stays_with_its_method(trial: Callable[..., Trial]) -> None:
    """Even under another key than the study's."""
    trials = (trial("ipg"), trial("continuous"))
    rows = [{**as_row(one), "key": "of before"} for one in trials]
    arms, left = arms_of(Study("small", trials, "test"), rows)
    assert [arm.rows[0]["method"] for arm in arms] == ["ipg", "continuous"]
    assert left == []


def as_row(trial: Trial) -> dict[str, Any]:
    return {**trial.identity, "config": trial.config.flat(), "split": "test"}


def test_settings_of_corrections_part_no_runs_without_pairs(trial: Callable[..., Trial]) -> None:
    told = {"alpha": 0.5, "tau": 0.5, "margin": "0.1", "every": 1, "pair_batch": 128, "strict": True}
    for method in ("erm", "groupdro"):
        assert same_run(as_row(trial(method)), trial(method, **told))
        assert run_of(trial(method)) == run_of(trial(method, **told))
    assert not same_run(as_row(trial("erm")), trial("erm", epochs=3))
    for name, value in told.items():
        assert not same_run(as_row(trial("ipg")), trial("ipg", **{name: value}))


def test_settings_of_the_rescaling_part_no_runs_that_do_not_rescale(trial: Callable[..., Trial]) -> None:
    told = {"alpha": 0.5, "tau": 0.5, "floor": 0.1, "strict": True}
    for method in ("joint", "joint_weighted", "cggd", "pair_augmentation"):
        assert same_run(as_row(trial(method)), trial(method, **told))
        assert run_of(trial(method)) == run_of(trial(method, **told))
        assert not same_run(as_row(trial(method)), trial(method, margin="0.1", pair_batch=128))
        following = as_row(trial(method, every="auto"))  # a pace by tau, with every * alpha below 1
        assert same_run(following, trial(method, every="auto"))
        assert not same_run(following, trial(method, every="auto", **told))


def test_what_corrections_depend_on_is_a_setting_of_a_run() -> None:
    assert set(RunConfig().flat()) >= OF_CORRECTIONS
    assert OF_CORRECTIONS >= OF_RESCALING
