"""Which rows are of which arm of a study, by key or by settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.table_rows import STUDY, row, write

from ipg.data.table import ImageTable
from ipg.experiments.arms import SUITED, arms_of, published, same_run
from ipg.experiments.study import ADDED, Study, Trial, load_study, own_options
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rows import measured
from ipg.training.materials import suited_model


def test_rows_find_their_arm_by_settings_and_the_rest_is_reported(project: Path) -> None:
    study = load_study(project / "studies" / "first.toml")
    known = row(study.trials[3], 0.7)
    del known["config"]["jitter"]  # written before there was such a setting
    other = row(study.trials[3], 0.7)
    other["config"] = {**other["config"], "alpha": 0.9}
    searched = {**row(study.trials[4], 0.7), "split": "search"}
    arms, unknown = arms_of(study, [other, known, searched])
    assert arms[1].rows == (known,)
    assert unknown == [other, searched]
    write(project / "results" / "first" / "trials.jsonl", [other, known])
    page = results_page(measured(project / "results", project / "studies"), published(), [])
    assert "Rows that no arm of the study file asks for, left out above: 1." in page


def test_a_row_without_a_setting_has_the_value_all_had_before_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two arms that differ in a new setting alone, an old row is of the one with the old value."""
    text = STUDY.replace("seeds = 3", "seeds = 1").partition('[[arm]]\nmethod = "ipg"')[0]
    text = text.replace('method = "erm"', 'method = "ipg"')
    arm = '[[arm]]\nmethod = "ipg"\nprotocol = "paper"\nconfig = { jitter = 0.1 }\n'
    (project / "studies" / "new.toml").write_text(text + arm, encoding="utf-8")
    study = load_study(project / "studies" / "new.toml")
    old = row(study.trials[0], 0.5)
    del old["config"]["jitter"]
    assert [len(arm.rows) for arm in arms_of(study, [old])[0]] == [1, 0]  # the first that nothing speaks against
    monkeypatch.setitem(ADDED, "jitter", 0.1)
    arms, unknown = arms_of(study, [old])
    assert [len(arm.rows) for arm in arms] == [0, 1]
    assert unknown == []


def test_what_a_trial_leaves_open_agrees_with_what_came_of_it(project: Path) -> None:
    study = load_study(project / "studies" / "tuned.toml")
    assert study.trials[0].config.precision == "auto"
    resolved = row(study.trials[0], 0.5)
    resolved["config"] |= {"precision": "bf16", "engine": "captured"}
    arms, unknown = arms_of(study, [resolved])
    assert [len(arm.rows) for arm in arms] == [1]
    assert unknown == []


JOINT = '[[arm]]\nmethod = "joint"\nprotocol = "tuned"\n'
SUM = f'{JOINT}config = {{ options = {{ order = "sum" }} }}\n'


def joint(project: Path, arms: str) -> Study:
    """A study of `joint` by default, with `order = "sum"`, or both."""
    file = project / "studies" / "joint.toml"
    file.write_text(f'dataset = "colored_mnist"\nseeds = 1\n{arms}', encoding="utf-8")
    return load_study(file)


def came(trial: Trial, average: float, **changes: Any) -> dict[str, Any]:
    """A row with all that a run settles: every option, the network that was taken, the key."""
    plain = row(trial, average)
    config = {**plain["config"], **own_options(trial.config), "model": trial.config.model or "mnist_cnn"}
    return {**plain, "key": trial.key, "study": trial.study, "config": config, **changes}


@pytest.mark.parametrize("key", [True, False])
def test_a_row_is_not_of_an_arm_that_leaves_its_option_at_the_default(project: Path, key: bool) -> None:
    """Also where rows are of a time, or a study, that has other keys."""

    def found(study: Study, rows: list[dict[str, Any]]) -> list[list[str]]:
        if not key:
            rows = [{name: value for name, value in line.items() if name != "key"} for line in rows]
        arms, unknown = arms_of(study, rows)
        assert unknown == []
        return [[line["config"]["order"] for line in arm.rows] for arm in arms]

    both = joint(project, JOINT + SUM)
    rows = [came(trial, 0.5) for trial in both.trials]
    assert found(both, rows[1:]) == [[], ["sum"]]
    assert found(both, rows[:1]) == [["task_first"], []]
    assert found(both, rows) == [["task_first"], ["sum"]]
    assert found(joint(project, SUM), rows[1:]) == [["sum"]]


def test_options_agree_whatever_they_were_written_as(project: Path) -> None:
    """On the command line a number is text, in a row it is a number."""
    (trial,) = joint(project, JOINT.replace("joint", "joint_weighted")).trials
    told = replace(trial, config=trial.config.with_changes(options={"weight": "2"}))
    found = came(told, 0.5, key="of another study")
    assert found["config"]["weight"] == 2.0
    assert same_run(found, told)
    assert not same_run(found, trial)


def test_a_trial_that_names_no_network_has_the_row_of_the_one_it_took(project: Path) -> None:
    study = joint(project, JOINT)
    (trial,) = study.trials
    assert trial.config.model is None
    mine = came(trial, 0.5)
    assert mine["config"]["model"] == "mnist_cnn"
    older = {name: value for name, value in mine.items() if name != "key"}
    for line in (mine, older):
        (arm,), unknown = arms_of(study, [line])
        assert (arm.rows, unknown) == ((line,), [])
    named = {**older, "config": {**older["config"], "model": "linear"}}
    (arm,), unknown = arms_of(study, [named])
    assert (arm.rows, unknown) == ((), [named])
    begun = replace(trial, config=trial.config.with_changes(start="runs/first"))
    brought = came(begun, 0.5)
    brought["config"]["model"] = "linear"  # the one that it goes on from
    assert same_run(brought, begun)


def test_networks_that_are_chosen_for_data_are_known(make_table: Callable[..., ImageTable]) -> None:
    def sized(side: int) -> ImageTable:
        return replace(make_table(), images=torch.zeros(200, 2, side, side, dtype=torch.uint8))

    assert {suited_model(sized(side)) for side in (8, 27, 28, 63)} == set(SUITED)


def test_a_row_by_key_comes_before_one_by_settings(project: Path) -> None:
    """The study once said in other words what it says now; what it makes now is what counts."""
    study = joint(project, JOINT)
    (trial,) = study.trials
    before, now = came(trial, 0.1, key="another"), came(trial, 0.2)
    for rows in ([before, now], [now, before]):
        (arm,), unknown = arms_of(study, rows)
        assert (arm.rows, unknown) == ((now,), [before])
    (arm,), unknown = arms_of(study, [before])
    assert (arm.rows, unknown) == ((before,), [])


def test_two_rows_of_one_key_are_refused_and_those_of_another_split_left(project: Path) -> None:
    study = joint(project, JOINT)
    (trial,) = study.trials
    with pytest.raises(ValueError, match="2 rows of joint"):
        arms_of(study, [came(trial, 0.1), came(trial, 0.2)])
    searched, tested = came(trial, 0.1, split="search"), came(trial, 0.2)
    (arm,), unknown = arms_of(study, [searched, tested])
    assert (arm.rows, unknown) == ((tested,), [searched])


def test_two_rows_of_one_trial_are_refused(project: Path) -> None:
    study = load_study(project / "studies" / "first.toml")
    twice = [row(study.trials[0], 0.1), row(study.trials[0], 0.2)]
    with pytest.raises(ValueError, match="2 rows of erm"):
        arms_of(study, twice)
