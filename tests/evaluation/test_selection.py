"""Which epoch is kept, on rows made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ipg.evaluation.selection import SELECTIONS, is_refit, kept_epoch, select


def row(epoch: int, **values: Any) -> dict[str, Any]:
    """A row of `metrics.jsonl`, as far as rules read it; the test split would spoil every choice."""
    validation = {"average": 0.5, "worst_group": None, "group_mean": None, "balanced": None, "environments": {}}
    validation |= {name: value for name, value in values.items() if name != "pair_disagreement"}
    test = dict.fromkeys(validation, float("nan"))
    return {
        "epoch": epoch,
        "validation": validation,
        "test": test,
        "pair_disagreement": values.get("pair_disagreement"),
    }


def environments(*accuracies: float) -> dict[str, Any]:
    return {str(number): {"accuracy": value, "count": 9} for number, value in enumerate(accuracies)}


def test_last() -> None:
    assert select("last", [row(1, worst_group=0.9), row(2, worst_group=0.1), row(3)]) == 2


def test_training_environments_takes_the_mean_over_environments() -> None:
    """Not weighted by their sizes: 0.75 beats 0.7 and 0.74."""
    rows = [
        row(1, environments=environments(0.9, 0.5)),
        row(2, environments=environments(0.7, 0.8)),
        row(3, environments=environments(0.74, 0.74)),
    ]
    rows[0]["validation"]["environments"]["0"]["count"] = 1_000
    assert select("training_environments", rows) == 1


def test_worst_group() -> None:
    assert select("worst_group", [row(1, worst_group=0.3), row(2, worst_group=0.5), row(3, worst_group=0.4)]) == 1


def test_worst_group_ties_go_to_the_mean_of_groups_and_then_to_the_earlier_epoch() -> None:
    tied = [row(epoch, worst_group=0.5, group_mean=mean) for epoch, mean in [(1, 0.6), (2, 0.8), (3, 0.8), (4, 0.7)]]
    assert select("worst_group", tied) == 1
    assert select("worst_group", [*tied, row(5, worst_group=0.6, group_mean=0.1)]) == 4


def test_pairs_multiplies_balanced_accuracy_and_agreement() -> None:
    rows = [
        row(1, balanced=0.5, pair_disagreement=0.0),  # collapsed: agrees on everything, knows nothing; 0.5
        row(2, balanced=1.0, pair_disagreement=0.9),  # the shortcut; 0.1
        row(3, balanced=0.9, pair_disagreement=0.2),  # 0.72
        row(4, balanced=0.78, pair_disagreement=0.1),  # 0.702
        row(5, balanced=0.7, pair_disagreement=0.0),  # 0.7
    ]
    assert select("pairs", rows) == 2
    assert select("pairs", [rows[0], rows[1], rows[4]]) == 2
    assert [SELECTIONS["pairs"](each) for each in rows[:3]] == [(0.5,), pytest.approx((0.1,)), pytest.approx((0.72,))]


@pytest.mark.parametrize("rule", ["training_environments", "worst_group", "pairs"])
def test_what_cannot_be_measured_loses_against_every_number(rule: str) -> None:
    nothing = row(1)
    worst = row(2, worst_group=0.0, group_mean=0.0, balanced=0.0, pair_disagreement=1.0, environments=environments(0.0))
    assert select(rule, [nothing, worst]) == 1
    assert select(rule, [worst, nothing]) == 0
    assert select(rule, [nothing, row(2)]) == 0  # a tie


def test_half_of_the_pair_rule_is_not_enough() -> None:
    rows = [row(1, balanced=0.9), row(2, pair_disagreement=0.0), row(3, balanced=0.1, pair_disagreement=0.9)]
    assert select("pairs", rows) == 2


@pytest.mark.parametrize("rule", ["training_environments", "worst_group", "pairs"])
def test_equal_epochs_go_to_the_first(rule: str) -> None:
    rows = [
        row(e, worst_group=0.5, group_mean=0.5, balanced=0.5, pair_disagreement=0.5, environments=environments(0.5))
        for e in range(1, 4)
    ]
    assert select(rule, rows) == 0


@pytest.mark.parametrize("rule", SELECTIONS)
def test_one_epoch(rule: str) -> None:
    assert select(rule, [row(1)]) == 0


def test_rules_that_are_none() -> None:
    message = "there is no selection rule 'best'; there are last, training_environments, worst_group, pairs"
    with pytest.raises(ValueError, match=message):
        select("best", [row(1)])


def test_no_epoch() -> None:
    with pytest.raises(ValueError, match="there is no epoch to select from"):
        select("last", [])


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"selected_epoch": 3, "config": {"epochs": 4}}, (3, False)),
        ({"selected_epoch": 5, "refitted_epoch": 2, "config": {"epochs": 4}}, (2, True)),
        ({"selected_epoch": 5, "config": {"epochs": 4}}, (None, True)),  # of before results said so
        ({"selected_epoch": 5}, (5, False)),
        ({"selected_epoch": None}, (None, False)),
        ({}, (None, False)),
    ],
)
def test_which_epoch_a_result_is_of(result: dict[str, Any], expected: tuple[int | None, bool]) -> None:
    assert kept_epoch(result) == expected


def test_which_rows_are_no_epochs() -> None:
    assert not is_refit({"epoch": 4}, {"epochs": 4})
    assert is_refit({"epoch": 5, "refitted": 4}, {})
    assert is_refit({"epoch": 5}, {"epochs": 4})
    assert not is_refit({}, {})
    assert not is_refit({}, {"epochs": 4})
