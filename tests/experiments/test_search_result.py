"""What a search found, and the file of it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipg.config import RunConfig, load_config
from ipg.experiments.search.plan import Plan, Tried
from ipg.experiments.search.result import Found, to_toml
from ipg.methods.space import Choice, LogUniform

ORIGIN = {"commit": "abc", "hardware": "a machine", "versions": {"torch": "2.8"}}


def tried(number: int, value: float | None, *, mean: float = 0.5, state: str = "complete", **about: Any) -> Tried:
    settings = {"weight": 0.5 + number, "batch": 64}
    return Tried(number, state, value, settings, {"group_mean": mean, **ORIGIN, **about})  # type: ignore[arg-type]


@pytest.fixture
def plan() -> Plan:
    base = RunConfig(
        method="irm",
        data='odd "data"\\\n',
        seed=104,
        data_path="/home/me",
        device="cpu",
        options={"penalty": "squared"},
    )
    space = {"weight": LogUniform(0.1, 1e5), "batch": Choice((64, 128))}
    return Plan("it", base, space, "worst_group", 6, "random")


def test_the_best_is_the_highest_then_the_higher_mean_then_the_first(plan: Plan) -> None:
    trials = [tried(0, 0.7, mean=0.8), tried(1, 0.9, mean=0.8), tried(2, 0.9, mean=0.9), tried(3, 0.9, mean=0.9)]
    found = Found(plan, [*trials, tried(4, 0.99, state="pruned"), tried(5, None, state="failed")], {})
    assert found.best == trials[2]
    assert found.count("complete", "pruned") == 5


def test_the_rule_without_groups_has_its_own(plan: Plan) -> None:
    found = Found(plan, [tried(0, 0.9, without_groups=0.1), tried(1, 0.2, without_groups=0.7)], {})
    assert found.best_without_groups is not None
    assert found.best_without_groups.number == 1
    assert "By the rule without group labels (balanced validation" in to_toml(found)
    assert Found(plan, [tried(0, 0.9)], {}).best_without_groups is None


def test_nothing_found(plan: Plan) -> None:
    found = Found(plan, [tried(0, 0.0, state="wrong")], {})
    assert found.best is None
    with pytest.raises(ValueError, match="no trial of it has a value yet"):
        _ = found.config


@pytest.mark.parametrize(("values", "in_vain"), [([0.0, 0.0], True), ([0.0, 0.01], False)])
def test_a_search_in_which_no_trial_beats_a_collapse_was_in_vain(
    plan: Plan, values: list[float], in_vain: bool, tmp_path: Path
) -> None:
    found = Found(plan, [tried(number, value) for number, value in enumerate(values)], {})
    assert found.in_vain is in_vain
    assert (found.write(tmp_path / "best.toml") is None) is in_vain
    assert (tmp_path / "best.toml").exists() is not in_vain
    assert not Found(plan, [tried(0, None, state="failed")], {}).in_vain


def test_the_file_is_the_configuration(plan: Plan, tmp_path: Path) -> None:
    trials = [
        tried(0, 0.25),
        tried(1, 0.75),
        tried(2, 0.75, **{"as": 1}),
        tried(3, 0.0, state="wrong", error="it collapsed"),
        tried(4, None, state="failed", error="no"),
        tried(5, 0.1, state="pruned"),
    ]
    file = Found(plan, trials, {}).write(tmp_path / "best.toml")
    assert file is not None
    config = load_config(file)
    assert config == plan.base.with_changes(
        seed=0, device="auto", data_path=None, batch=64, options={"penalty": "squared", "weight": 1.5}
    )
    text = file.read_text(encoding="utf-8")
    assert "/home/me" not in text
    assert "seed" not in tomllib.loads(text)
    assert "the best of 5 trials of `ipg search`" in text
    assert "# Sampler random; seed 104, which all trials were trained with." in text
    tpe = to_toml(Found(replace(plan, sampler="tpe"), trials, {}))
    assert "# Sampler tpe, at random until 10 trials have ended; seed 104, which all" in tpe
    assert "# Searched: weight, 0.1 to 100000, logarithmic." in text
    assert "# Commit abc; a machine; torch 2.8." in text
    assert text.endswith(
        "# All trials:\n"
        "#      0   25.00 %  weight 0.5, batch 64\n"
        "#      1   75.00 %  weight 1.5, batch 64\n"
        "#      2   75.00 %  weight 2.5, batch 64  as trial 1\n"
        "#      3    0.00 %  weight 3.5, batch 64  it collapsed\n"
        "#      4         –  weight 4.5, batch 64  failed\n"
        "#      5   10.00 %  weight 5.5, batch 64  pruned\n"
    )
