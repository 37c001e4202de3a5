"""The rivals' own ColoredMNIST protocols: whole trainings through the one loop against their scripts, written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.experiments.study import find_study
from ipg.training.loop import train
from ipg.training.materials import gather

STEPS, ANNEAL = 8, 4


def original(method: str) -> RunConfig:
    """The configuration of the study, annealed early, in the small."""
    trial = next(trial for trial in find_study("colored_mnist_originals").trials if trial.method == method)
    options = {**trial.config.options, "anneal": ANNEAL}
    return trial.config.with_changes(options=options, epochs=2, steps=STEPS // 2, device="cpu")


def in_halves(table: ImageTable) -> ImageTable:
    """The table with training images of two environments, as many of each."""
    return replace(table, environment=torch.where(table.split == 0, torch.arange(len(table)) % 2, 2))


def irm_penalty(features: Tensor, logits: Tensor, y: Tensor, head: nn.Linear) -> Tensor:
    scale = torch.ones((), requires_grad=True)
    (slope,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(logits * scale, y), scale, create_graph=True)
    return slope**2


def gradient_variance(features: Tensor, logits: Tensor, y: Tensor, head: nn.Linear) -> Tensor:
    error = torch.sigmoid(logits) - y
    gradients = torch.cat([error * features, error], dim=1)  # (n, D + 1): of one output
    return gradients.var(dim=0, correction=0)


def script(network: Any, table: ImageTable, flags: dict[str, float], statistic: Callable[..., Tensor]) -> Tensor:
    """The authors' loop; returns the parameters it ends with."""
    body, head = network.body, network.head
    optimizer = torch.optim.Adam(network.parameters(), lr=flags["lr"])
    train_part = table.part("train")
    for step in range(STEPS):
        risks, found = [], []
        for environment in (1, 0):
            here = train_part.environment == environment
            images, y = train_part.images[here].float() / 255, train_part.label[here].float()[:, None]
            features = body(images)
            logits = head(features)
            risks.append(F.binary_cross_entropy_with_logits(logits, y))
            found.append(statistic(features, logits, y, head))
        loss = torch.stack(risks).mean()
        norm = torch.zeros(())
        for w in network.parameters():
            norm = norm + w.norm().pow(2)
        loss = loss + flags["l2"] * norm
        if found[0].ndim == 0:
            penalty = torch.stack(found).mean()
        else:
            middle = torch.stack(found).mean(dim=0)
            penalty = (found[0] - middle).pow(2).sum() + (found[1] - middle).pow(2).sum()
        weight = flags["weight"] if step >= ANNEAL else 1.0
        loss = loss + weight * penalty
        if weight > 1.0:
            loss = loss / weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([w.detach().flatten() for w in network.parameters()])


@pytest.mark.parametrize(("name", "statistic"), [("irm", irm_penalty), ("fishr", gradient_variance)])
def test_full_batches_of_arjovskys_protocol(
    name: str, statistic: Callable[..., Tensor], make_table: Callable[..., ImageTable]
) -> None:
    table = in_halves(make_table(train=120, validation=0))
    config = original(name).with_changes(batch=120)
    ours = gather(config, table=table)
    theirs = gather(config, table=table).model
    start = torch.cat([w.detach().flatten() for w in theirs.parameters()])
    flags = {"lr": config.learning_rate, "l2": config.options["l2"], "weight": config.options["weight"]}
    expected = script(theirs, table, flags, statistic)
    outcome = train(config, ours)
    found = torch.cat([w.detach().flatten() for w in outcome.model.parameters()])
    moved = (expected - start).abs().max()
    assert moved > 1e-3  # eight steps of Adam at 5e-4
    torch.testing.assert_close(found, expected, atol=2e-2 * moved.item(), rtol=0)
    assert (found - expected).abs().mean() < 1e-3 * (expected - start).abs().mean()


def test_what_the_scripts_were_run_with() -> None:
    """Steps, widths, batches and epochs of each arm."""
    trials = [trial for trial in find_study("colored_mnist_originals").trials if trial.seed == 0]
    assert {trial.protocol for trial in trials} == {"original"}
    assert {trial.config.selection for trial in trials} == {"last"}
    assert not any(trial.config.class_weighted for trial in trials)
    facts = [(t.method, t.dataset, t.config.model, t.config.epochs * int(t.config.steps or 0), t.config.batch)
             for t in trials]  # fmt: skip
    assert facts == [
        ("erm", "colored_mnist_irm", "irm_mlp_256", 501, 50_000),
        ("oracle", "colored_mnist_irm", "irm_mlp_83", 101, 50_000),
        ("irm", "colored_mnist_irm", "irm_mlp", 501, 50_000),
        ("fishr", "colored_mnist_irm", "irm_mlp", 501, 50_000),
        *[("meta_irm", "colored_mnist_irm", "irm_mlp", 501, 50_000)] * 2,  # by two settings
        *[("dair", "colored_mnist_dair", "dair_cnn", 40 * 157, 128)] * 2,  # by two weights
        ("fishr", "colored_mnist_test0", "mnist_cnn", 5_001, 128),
        ("fishr", "colored_mnist_test1", "mnist_cnn", 5_001, 128),
        ("fishr", "colored_mnist_test2", "mnist_cnn", 5_001, 128),
    ]
    assert 20_000 / 157 <= 128 < 20_000 / 156  # an epoch is a pass


def test_the_weight_of_dair_is_looked_for_without_test_digits() -> None:
    """All weights of the authors' lists, by what is run on test digits but for the weight, with other seeds."""
    study = find_study("colored_mnist_originals_tuning")
    assert (study.metrics_split, study.decides) == ("search", "average")
    assert {trial.seed for trial in study.trials} == {101, 102}
    weights = [0, 1, 2, 3, 4, 5, *range(10, 101, 10)]
    assert [trial.config.options["weight"] for trial in study.trials if trial.seed == 101] == weights
    tested = [trial for trial in find_study("colored_mnist_originals").trials if trial.method == "dair"]
    assert not {trial.seed for trial in tested} & {trial.seed for trial in study.trials}
    for trial in (*tested, *study.trials):
        changed = trial.config.with_changes(seed=0, options={**trial.config.options, "weight": 1})
        assert (changed, trial.dataset) == (tested[0].config, "colored_mnist_dair")


def test_plain_trainings_weight_decay_is_the_authors_l2() -> None:
    """The derivative of l2 ‖θ‖² is 2 l2 θ, which Adam's weight decay adds to the gradient."""
    trials = {trial.method: trial for trial in find_study("colored_mnist_originals").trials}
    assert trials["erm"].config.weight_decay == 2 * 0.001
    assert trials["oracle"].config.weight_decay == pytest.approx(2 * 0.0008602868865288383, rel=1e-12)
