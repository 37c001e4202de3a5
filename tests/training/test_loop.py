"""The one training loop: the same again, and against a loop written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from training.loop_outcomes import METHODS, bits, timeless

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.guidance import NonFiniteError
from ipg.seeds import derive_seed
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials, gather
from ipg.training.optimization import class_weights, learning_rate

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits(settings: Make, materials: Gather, method: str) -> None:
    def run(seed: int) -> Outcome:
        config = settings(method, epochs=2, seed=seed, jitter=0.1, margin="2x")
        return train(config, materials(config))

    one, same, other = run(1), run(1), run(2)
    assert torch.equal(bits(one.model), bits(same.model))
    assert timeless(one.rows) == timeless(same.rows)
    assert not torch.equal(bits(one.model), bits(other.model))


def test_what_surrounds_a_run_does_not_reach_it(settings: Make, materials: Gather) -> None:
    """A seed, a drawn number or a run before it in the same process."""
    config = settings("ipg", epochs=1, every=1, jitter=0.1, margin="2x")  # jitter draws from the global generator
    expected = bits(train(config, materials(config)).model)
    torch.manual_seed(99)
    torch.rand(7)
    other = settings("joint", epochs=1, seed=5)
    train(other, materials(other))
    assert torch.equal(bits(train(config, materials(config)).model), expected)


@pytest.mark.parametrize("method", ["ipg", "erm"])
def test_a_run_leaves_the_global_generator_alone(settings: Make, materials: Gather, method: str) -> None:
    config = settings(method, epochs=1, jitter=0.1)
    before = torch.get_rng_state()
    train(config, materials(config))
    assert torch.equal(torch.get_rng_state(), before)
    broken = settings(method, epochs=1, learning_rate=1e30, optimizer="sgd")
    with pytest.raises(NonFiniteError):
        train(broken, materials(broken))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("class_weighted", [True, False])
def test_plain_training_against_a_hand_written_loop(
    settings: Make, materials: Gather, make_table: Callable[..., ImageTable], optimizer: str, class_weighted: bool
) -> None:
    table = make_table()
    table = table.take(torch.cat([torch.arange(0, 80), torch.arange(81, 200, 2), torch.arange(120, 200)]).unique())
    config = settings(
        epochs=2,
        seed=4,
        learning_rate=3e-3,
        optimizer=optimizer,
        weight_decay=0.01,
        warmup=2,
        class_weighted=class_weighted,
    )
    outcome = train(config, gather(config, table=table))

    part = table.part("train")
    n = len(part)
    counts = torch.bincount(part.label)
    assert counts[0] != counts[1]
    weight = torch.tensor([n / (2 * count) for count in counts.tolist()]) if class_weighted else None
    model = gather(config, table=table).model.train()
    made: dict[str, Any] = {
        "adam": lambda p: torch.optim.Adam(p, lr=1.0, weight_decay=0.01, fused=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.01, fused=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01),
    }
    by_hand = made[optimizer](model.parameters())
    step, total = 0, 2 * math.ceil(n / 32)
    losses: list[list[float]] = []
    for epoch in range(2):
        generator = torch.Generator().manual_seed(derive_seed(4, "order", epoch))
        order = torch.randperm(n, generator=generator)
        losses.append([])
        for start in range(0, n, 32):
            rows = order[start : start + 32]
            by_hand.param_groups[0]["lr"] = learning_rate(step, total, config)
            loss = F.cross_entropy(model(part.images[rows].float() / 255), part.label[rows], weight)
            by_hand.zero_grad()
            loss.backward()
            by_hand.step()
            losses[-1].append(loss.item())
            step += 1
    assert torch.equal(bits(outcome.model), bits(model))
    assert [row["train"]["task_loss"] for row in outcome.rows] == pytest.approx(
        [sum(values) / len(values) for values in losses]
    )
    assert [row["step"] for row in outcome.rows] == [total // 2, total]


def test_class_weights_in_numbers(make_table: Callable[..., ImageTable]) -> None:
    """N / (K N_c): 8 images of class 0 and 2 of class 1 weigh 10/16 and 10/4."""
    table = make_table(train=10, validation=0, test=0)
    table = replace(table, label=torch.tensor([0] * 8 + [1] * 2))
    assert class_weights(table).tolist() == [0.625, 2.5]
    empty = replace(table, classes=("a", "b", "c"))
    assert class_weights(empty).tolist() == pytest.approx([10 / 24, 10 / 6, 0.0])


def test_a_network_is_left_without_hooks(settings: Make, materials: Gather) -> None:
    for config in (settings("ipg", epochs=1), settings("ipg", learning_rate=1e30, optimizer="sgd")):
        given = materials(config)
        try:
            train(config, given)
        except NonFiniteError:
            assert config.learning_rate == 1e30
        assert not any(module._forward_hooks for module in given.model.modules())


def test_bf16_runs_on_a_cpu(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=1)
    plain = train(config, materials(config))
    halved = config.with_changes(precision="bf16")
    outcome = train(halved, materials(halved))
    assert outcome.model.head.weight.dtype == torch.float32  # type: ignore[union-attr]
    assert not torch.equal(bits(outcome.model), bits(plain.model))


def test_it_learns(settings: Make, materials: Gather) -> None:
    """The bars are easy: guided training finds them in a few epochs."""
    config = settings("ipg", epochs=8, learning_rate=0.01)
    outcome = train(config, materials(config))
    assert outcome.result["metrics"]["worst_group"] == 1.0
    assert outcome.result["metrics"]["pair_disagreement"] == 0.0
