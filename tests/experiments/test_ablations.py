"""Ablations that only studies know: each changes what it says and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.experiments.ablations import LateGuidance, corrupt, gather_trial, majority_label, one_environment
from ipg.experiments.study import Trial
from ipg.experiments.trial import run_trial
from ipg.methods import METHODS, STUDIED, method_class
from ipg.paired import Pairs
from ipg.pairs.recolored import build
from ipg.training.listeners import Listener
from ipg.training.loop import train

pytestmark = pytest.mark.usefixtures("one_thread")


def test_studies_know_it_and_no_list_shows_it() -> None:
    assert method_class("ipg_ablated") is STUDIED["ipg_ablated"]
    assert "ipg_ablated" not in METHODS


def metrics(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["validation_curve"], row["metrics"], row["predictions"]


@pytest.mark.usefixtures("bars")
def test_with_nothing_changed_it_is_ipg(trial: Callable[..., Trial]) -> None:
    assert metrics(run_trial(trial("ipg_ablated"))) == metrics(run_trial(trial("ipg")))


class Stops(Listener):
    """Ends a run after its first epoch, as a kill does."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        raise InterruptedError


def weights(config: RunConfig, **options: Any) -> torch.Tensor:
    model = train(config, gather_trial(config), **options).model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_separate_optimizers_go_on_where_they_were(bars: Any, trial: Callable[..., Trial], tmp_path: Path) -> None:
    config = trial("ipg_ablated", options={"optimizers": "separate"}, every=1, epochs=3).config
    with pytest.raises(InterruptedError):
        weights(config, folder=tmp_path / "run", listeners=[Stops()])
    torch.testing.assert_close(weights(config, folder=tmp_path / "run"), weights(config), rtol=0, atol=0)


def test_corrections_reach_the_last_parameters_alone(own_random_state: None) -> None:
    """Those before have no corrective gradient and no graph; those after have the one that they have in IPG."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    pairs = Pairs(torch.randn(8, 1, 2, 2), torch.randn(8, 1, 2, 2), torch.arange(8) % 2)
    found = {}
    for reach in (1.0, 0.5, 0.0):
        guide = LateGuidance(model, torch.optim.SGD(model.parameters(), lr=0.1), reach=reach)
        terms = guide.terms(pairs)
        loss = terms.alignment + terms.uniformity
        found[reach] = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        assert all(parameter.requires_grad for parameter in model.parameters())
    assert [gradient is None for gradient in found[0.5][:5]] == [True, True, False, False, False]
    assert [gradient is None for gradient in found[0.0][:5]] == [True] * 4 + [False]  # the head's weight; not its bias
    for late, whole in zip(found[0.5][2:5], found[1.0][2:5], strict=True):
        torch.testing.assert_close(late, whole, rtol=0, atol=0)


@pytest.mark.usefixtures("bars")
def test_a_run_with_a_short_reach(trial: Callable[..., Trial]) -> None:
    short, whole = (run_trial(trial("ipg_ablated", options={"reach": reach}, every=1)) for reach in (0.5, 1.0))
    assert metrics(short) != metrics(whole)


@pytest.mark.usefixtures("bars")
def test_an_adam_of_its_own_cancels_alpha(trial: Callable[..., Trial]) -> None:
    """It divides by the length of its gradients, so any alpha does the same; a shared one sees both lengths."""

    def moved(optimizers: str) -> float:
        changes = {"options": {"optimizers": optimizers}, "every": 1, "learning_rate": 1e-3}
        low, high = (weights(trial("ipg_ablated", alpha=alpha, **changes).config) for alpha in (0.1, 0.8))
        return float((low - high).norm())

    assert moved("separate") < 0.2 * moved("shared")


def test_corrupted_pairs_exchange_their_second_members_across_labels(make_table: Callable[..., ImageTable]) -> None:
    pairs = build(make_table(), 40)
    changed = corrupt(pairs, 0.2, seed=3)
    moved = torch.nonzero((changed.second != pairs.second).flatten(1).any(1)).flatten()
    assert len(moved) == 8
    table = make_table()
    for row in moved.tolist():
        assert table.label[changed.source[row, 1]] != pairs.label[row]
        assert torch.equal(changed.second[row], table.images[changed.source[row, 1]].flip(0))
    assert torch.equal(changed.first, pairs.first)
    assert torch.equal(changed.label, pairs.label)
    assert sorted(changed.source[:, 1].tolist()) == sorted(pairs.source[:, 1].tolist())
    assert torch.equal(corrupt(pairs, 0.0, seed=3).second, pairs.second)


def test_more_than_can_be_exchanged_is_refused(make_table: Callable[..., ImageTable]) -> None:
    pairs = build(make_table(), 40)
    few = pairs.take(torch.cat([torch.nonzero(pairs.label == 0).flatten(), torch.nonzero(pairs.label == 1)[0]]))
    with pytest.raises(ValueError, match="lower the share"):
        corrupt(few, 0.5, seed=0)


def test_one_environment_leaves_the_others_out_of_training_and_validation(
    make_table: Callable[..., ImageTable],
) -> None:
    table = make_table()
    alone = one_environment(table, 1)
    for split in ("train", "validation"):
        part = alone.part(split)
        assert set(part.environment.tolist()) == {1}
        assert len(part) == int((table.part(split).environment == 1).sum())
    assert len(alone.part("test")) == len(table.part("test"))
    with pytest.raises(ValueError, match="no training images of environment 5"):
        one_environment(table, 5)


def test_clean_labels_are_those_of_the_content(make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    label = table.label.clone()
    label[::5] = 1 - label[::5]  # a fifth is wrong; content still tells
    noisy = replace(table, label=label)
    torch.testing.assert_close(majority_label(noisy)[noisy.content], table.label)


@pytest.mark.usefixtures("bars")
def test_the_trial_gets_what_its_options_say(trial: Callable[..., Trial]) -> None:
    alone = gather_trial(trial("ipg_ablated", options={"environment": "first"}).config)
    assert alone.pairs is not None
    assert set(alone.table.environment[alone.pairs.source].flatten().tolist()) == {0}
    corrupted = gather_trial(trial("ipg_ablated", options={"corrupted": 0.5}).config)
    plain = gather_trial(trial("ipg").config)
    assert corrupted.pairs is not None
    assert plain.pairs is not None
    assert int((corrupted.pairs.second != plain.pairs.second).flatten(1).any(1).sum()) == 4
