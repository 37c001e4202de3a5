"""What a run evaluates, and which epoch it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training.loop_outcomes import bits

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.groups import evaluate
from ipg.evaluation.pairs import pair_disagreement
from ipg.evaluation.selection import select
from ipg.training.loop import train
from ipg.training.materials import Materials, gather

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


def test_every_epoch_is_evaluated_on_all_splits(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=3)
    given = materials(config)
    outcome = train(config, given)
    assert [row["epoch"] for row in outcome.rows] == [1, 2, 3]
    for row in outcome.rows:
        assert set(row) == {
            "epoch", "step", "seconds", "learning_rate", "train", "validation", "test", "pair_disagreement",
            "train_pair_disagreement",
        }  # fmt: skip
        assert sum(group["count"] for group in row["validation"]["groups"].values()) == 40
        assert sum(group["count"] for group in row["test"]["groups"].values()) == 40
    last, training = outcome.rows[-1], given.table.part("train")
    for split in ("test", "validation"):
        assert last[split] == evaluate(outcome.model, given.table.part(split), training=training)
    assert last["pair_disagreement"] == pair_disagreement(outcome.model, given.held_out)
    assert last["train_pair_disagreement"] == pair_disagreement(outcome.model, given.pairs)
    assert len({json.dumps(row["train"]) for row in outcome.rows}) == 3  # means begin anew with an epoch
    assert json.loads(json.dumps(outcome.rows)) == outcome.rows


def test_evaluating_does_not_change_the_training(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=2)
    one, other = train(config, materials(config)), train(config, materials(config), evaluate_on=())
    assert torch.equal(bits(one.model), bits(other.model))
    assert "validation" not in other.rows[0]


POISON = 251


def poisoned(table: ImageTable, split: str) -> ImageTable:
    images = table.images.clone()
    images[table.indices(split)] = POISON
    return replace(table, images=images)


def alarmed(model: nn.Module) -> nn.Module:
    """Fails when it is shown a poisoned image."""

    def check(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if (inputs[0] >= POISON / 255).flatten(1).all(dim=1).any():
            raise AssertionError("a poisoned image was read")

    model.register_forward_pre_hook(check)
    return model


@pytest.mark.parametrize("method", ["erm", "ipg"])
def test_a_split_that_is_not_asked_for_is_not_read(settings: Make, table: ImageTable, method: str) -> None:
    config = settings(method, epochs=1, selection="worst_group")
    given = gather(config, table=poisoned(table, "test"))
    alarmed(given.model)
    outcome = train(config, given, evaluate_on=("validation",))
    assert "test" not in outcome.rows[0]
    assert set(outcome.result["metrics"]) == {"pair_disagreement"}
    with pytest.raises(AssertionError, match="a poisoned image was read"):
        train(config, given)


@pytest.mark.parametrize("decision", ["argmax", "worst_group"])
def test_a_split_left_to_the_end_is_evaluated_of_the_kept_and_the_last_network(
    settings: Make, materials: Gather, decision: str, tmp_path: Path
) -> None:
    rates = {"learning_rate": 0.05, "schedule": "constant"}
    config = settings("ipg", epochs=6, selection="worst_group", decision=decision, **rates)
    often = train(config, materials(config))
    once = train(config, materials(config), folder=tmp_path, evaluate_on=("validation",), evaluate_once=("test",))
    kept = once.result["selected_epoch"]
    assert kept == often.result["selected_epoch"] < 6
    assert [row["epoch"] for row in once.rows if "test" in row] == [kept, 6]
    for name in ("metrics", "last_metrics"):
        assert once.result[name] == often.result[name]
    again = train(config, materials(config), folder=tmp_path, evaluate_on=("validation",), evaluate_once=("test",))
    assert (again.rows, again.result) == (once.rows, once.result)


@pytest.mark.parametrize(
    ("splits", "message"),
    [(("train",), "the train split is named"), (("tset",), "bars has no split 'tset'; it has train, val")],
)
def test_splits_that_cannot_be_evaluated(settings: Make, materials: Gather, splits: Any, message: str) -> None:
    config = settings()
    with pytest.raises(ValueError, match=message):
        train(config, materials(config), evaluate_on=splits)
    with pytest.raises(ValueError, match=message):
        train(config, materials(config), evaluate_once=splits)


@pytest.mark.parametrize("rule", ["last", "training_environments", "worst_group", "pairs"])
def test_the_kept_epoch_is_the_rules(settings: Make, materials: Gather, rule: str) -> None:
    config = settings(epochs=6, learning_rate=0.05, schedule="constant", selection=rule)
    given = materials(config)
    outcome = train(config, given)
    kept = outcome.rows[select(rule, outcome.rows)]
    assert outcome.result["selection"] == rule
    assert outcome.result["selected_epoch"] == kept["epoch"]
    assert outcome.result["metrics"] == {**kept["test"], "pair_disagreement": kept["pair_disagreement"]}
    assert outcome.result["last_metrics"]["average"] == outcome.rows[-1]["test"]["average"]
    assert evaluate(outcome.model, given.table.part("test"), training=given.table.part("train")) == kept["test"]
    assert not outcome.model.training
    if rule == "worst_group":  # the rates above are such that it is not the last
        assert kept["epoch"] < 6


@pytest.mark.parametrize(
    ("rule", "changes", "evaluate_on", "message"),
    [
        ("pairs", {"held_out_pairs": 0}, None, "selection='pairs' needs held-out pairs and there are none"),
        ("pairs", {}, ("test",), "selection='pairs' needs validation images and there are none"),
        ("worst_group", {}, ("test",), "selection='worst_group' needs validation images"),
        ("training_environments", {}, (), "selection='training_environments' needs validation images"),
    ],
)
def test_a_rule_without_what_it_measures(
    settings: Make, materials: Gather, rule: str, changes: Any, evaluate_on: Any, message: str
) -> None:
    config = settings(selection=rule, **changes)
    with pytest.raises(ValueError, match=message):
        train(config, materials(config), evaluate_on=evaluate_on)


def test_held_out_pairs_of_which_there_are_none(settings: Make, materials: Gather) -> None:
    """An empty set measures as little as no set."""
    config = settings(selection="pairs")
    given = materials(config)
    assert given.held_out is not None
    with pytest.raises(ValueError, match="selection='pairs' needs held-out pairs and there are none"):
        train(config, replace(given, held_out=given.held_out.take(torch.arange(0))))


def test_data_without_validation_images(settings: Make, make_table: Callable[..., ImageTable]) -> None:
    config = settings("ipg", epochs=1)
    outcome = train(config, gather(config, table=make_table(validation=0)))
    assert outcome.rows[0]["validation"]["average"] is None
    assert outcome.rows[0]["pair_disagreement"] is None
    with pytest.raises(ValueError, match="needs validation images and there are none; use selection='last'"):
        train(config.with_changes(selection="worst_group"), gather(config, table=make_table(validation=0)))
