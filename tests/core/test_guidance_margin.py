"""The margin, and what happens where a representation collapses or numbers are none."""

from __future__ import annotations

import copy
import math
from types import ModuleType

import pytest
import torch
from torch import nn

from ipg.comparison import compare
from ipg.guidance import CollapseError, Guidance, NonFiniteError
from ipg.watch import COLLAPSE_PATIENCE, LAST_PATIENCE

# -- the margin -----------------------------------------------------------------------------------------------------


def test_relative_margin_is_a_share_of_the_first_distances(toys: ModuleType, naive: ModuleType) -> None:
    model = toys.mlp(classes=3)
    slow = naive.Net(model[:-1], model[-1])
    one_class, mixed = toys.pairs(classes=3, seed=7), toys.pairs(classes=3, seed=8)
    one_class.label.zero_()
    guide = Guidance(model, toys.build(model), margin="0.5x")
    assert math.isnan(guide.margin.item())

    first = guide.correct(one_class)
    assert math.isnan(guide.margin.item())  # one class only: it waits
    assert first.uniformity.item() == 0
    assert first.norm.item() > 0

    q, _ = naive.rationales(slow, mixed.first)
    q_prime, _ = naive.rationales(slow, mixed.second)
    distance = naive.mean_distance_of_different_labels(q, q_prime, mixed.label.tolist())
    expected = naive.uniformity(q, q_prime, mixed.label.tolist(), 0.5 * distance).item()
    second = guide.correct(mixed)
    assert guide.margin.item() == pytest.approx(0.5 * distance, rel=1e-12)
    assert second.uniformity.item() == pytest.approx(expected, rel=1e-12)
    assert guide.state_dict()["margin"].item() == guide.margin.item()

    guide.correct(toys.pairs(classes=3, seed=9))
    assert guide.margin.item() == pytest.approx(0.5 * distance, rel=1e-12)  # measured once


def test_relative_margin_is_not_measured_on_infinite_features(toys: ModuleType) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    guide = Guidance(model, toys.build(model), margin="0.5x", scaler=torch.amp.GradScaler("cpu"))
    bad, good = toys.pairs(2, dtype=torch.float32), toys.pairs(2, dtype=torch.float32)
    bad.first[0] = 1e30  # its squares are infinite in single precision
    guide.correct(bad)
    assert math.isnan(guide.margin.item())
    guide.correct(good)
    assert 0 < guide.margin.item() < math.inf


def test_margin_zero_switches_uniformity_off(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), margin=0)
    assert guide.correct(toys.pairs()).uniformity.item() == 0


def test_terms_carry_their_graph_and_move_nothing(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), margin=0.5)
    before = toys.bits(model)
    terms = guide.terms(toys.pairs())
    assert torch.equal(toys.bits(model), before)
    (terms.alignment + terms.uniformity).backward()
    twin = toys.mlp()
    optimizer = toys.build(twin)
    gradients = toys.watch_gradients(optimizer)
    Guidance(twin, optimizer, margin=0.5).correct(toys.pairs())
    for parameter, gradient in zip(list(model.parameters())[:-1], gradients[0], strict=False):
        torch.testing.assert_close(parameter.grad, gradient)
    assert model[-1].bias.grad is None


# -- collapse and NaN -----------------------------------------------------------------------------------------------


def collapsed_model(toys: ModuleType, how: str) -> nn.Sequential:
    model = toys.mlp(dtype=torch.float32)
    collapse(model, how)
    return model


def collapse(model: nn.Sequential, how: str) -> None:
    with torch.no_grad():
        if how == "dead features":
            model[2].bias.fill_(-1e4)
        elif how == "zero head":
            model[-1].weight.zero_()
        elif how == "one point":
            model[2].weight.zero_()
            model[2].bias.fill_(1.0)
        elif how == "a speck":  # small against the margin, but no single point
            model[2].weight.mul_(1e-4)
            model[2].bias.fill_(1e-3)


@pytest.mark.parametrize(
    ("how", "margin"),
    [
        *(("dead features", 10.0), ("zero head", 10.0), ("one point", 10.0), ("a speck", 10.0)),
        *(("dead features", 0.0), ("zero head", 0.0), ("one point", 0.0)),  # no hinge to tell by: features lie flat
    ],
)
def test_collapse_is_told_after_its_patience(toys: ModuleType, how: str, margin: float) -> None:
    model = toys.mlp(dtype=torch.float32)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=1e-7), margin=margin)
    collapse(model, how)
    for _ in range(COLLAPSE_PATIENCE - 1):
        guide.step(toys.task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))
        guide.check()
    guide.step(toys.task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))
    with pytest.raises(CollapseError, match=r"for 20 corrections.*lower the learning rate"):
        guide.check()


def test_at_the_end_of_training_few_corrections_tell_of_a_collapse(toys: ModuleType) -> None:
    model = collapsed_model(toys, "one point")
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(LAST_PATIENCE):
        guide.check(ended=True)
        guide.correct(toys.pairs(dtype=torch.float32))
    guide.check()
    with pytest.raises(CollapseError, match=r"for 3 corrections.*lower the learning rate"):
        guide.check(ended=True)


def test_collapse_must_last(toys: ModuleType) -> None:
    """One correction with some spread starts the count anew, and one class alone says nothing."""
    model = collapsed_model(toys, "one point")
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(COLLAPSE_PATIENCE - 1):
        guide.correct(toys.pairs(dtype=torch.float32))
    healthy = toys.mlp(dtype=torch.float32).state_dict()
    dead = copy.deepcopy(model.state_dict())
    model.load_state_dict(healthy)
    guide.correct(toys.pairs(dtype=torch.float32))
    model.load_state_dict(dead)
    for _ in range(COLLAPSE_PATIENCE - 1):
        guide.correct(toys.pairs(dtype=torch.float32))
    guide.check()
    one_class = toys.pairs(dtype=torch.float32)
    one_class.label.zero_()
    for _ in range(2):
        guide.correct(one_class)
    guide.check()
    for _ in range(COLLAPSE_PATIENCE):
        guide.correct(toys.pairs(dtype=torch.float32))
    with pytest.raises(CollapseError):
        guide.check()


@pytest.mark.parametrize("margin", [0.0, 1.0])
def test_a_model_of_the_shortcut_alone_has_not_collapsed(toys: ModuleType, margin: float) -> None:
    """All first members on one point and all second ones on another: alignment still pulls."""
    model = toys.mlp(dtype=torch.float32)
    with torch.no_grad():
        model[0].weight[:, :-1] = 0
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.0), margin=margin)
    pairs = toys.pairs(dtype=torch.float32)
    pairs.first[:, -1], pairs.second[:, -1] = 0.0, 3.0
    for _ in range(COLLAPSE_PATIENCE):
        correction = guide.correct(pairs)
    assert correction.norm.item() > 0
    guide.check()


def test_aligned_members_without_a_margin_have_not_collapsed(toys: ModuleType) -> None:
    members = torch.randn(4, 5, generator=toys.seeded(0))
    found = compare(members.repeat(2, 1), torch.arange(4), torch.zeros(4, dtype=torch.bool), torch.zeros(()))
    assert found.alignment == 0
    assert found.uniformity == 0
    assert not found.near
    assert not found.flat


def test_a_small_head_on_its_way_has_not_collapsed(toys: ModuleType) -> None:
    """Rationales of a small head are next to nothing apart, as the margin goes, until it has grown."""
    model = toys.mlp(dtype=torch.float32)
    with torch.no_grad():
        model[-1].weight.mul_(1e-5)
    guide = Guidance(model, torch.optim.AdamW(model.parameters(), lr=2e-6), margin=1.5)
    pairs = toys.pairs(shift=0.01, dtype=torch.float32)
    different = (pairs.label[:, None] != pairs.label).float().mean()
    for _ in range(2 * COLLAPSE_PATIENCE):
        correction = guide.correct(pairs)
        assert correction.uniformity > 0.999 * guide.margin * different
        guide.check()


def test_a_small_head_that_stands_still_has_collapsed(toys: ModuleType) -> None:
    model = toys.mlp(dtype=torch.float32)
    with torch.no_grad():
        model[-1].weight.mul_(1e-5)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.0), margin=1.5)
    for _ in range(COLLAPSE_PATIENCE):
        guide.correct(toys.pairs(dtype=torch.float32))
    with pytest.raises(CollapseError):
        guide.check()


@pytest.mark.parametrize("margin", [0.1, 5.0, "0.5x", 0.0])
def test_healthy_training_is_left_alone(toys: ModuleType, margin: float | str) -> None:
    model = toys.mlp(dtype=torch.float32)
    guide = Guidance(model, toys.build(model, "adam"), margin=margin, tau=0.1)
    for i in range(3 * COLLAPSE_PATIENCE):
        guide.step(toys.task(model, toys.batch(seed=i, dtype=torch.float32)), toys.pairs(seed=i, dtype=torch.float32))
        guide.check()


def test_jitter_still_pushes_at_a_collapsed_point(toys: ModuleType) -> None:
    def norm(jitter: float, seed: int = 0) -> float:
        model = collapsed_model(toys, "one point")
        guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), jitter=jitter, generator=toys.seeded(seed))
        before = toys.bits(model)
        value = guide.correct(toys.pairs(shift=0.0, dtype=torch.float32)).norm.item()
        assert torch.equal(toys.bits(model), before) == (value == 0)
        return value

    assert norm(0.0) == 0
    assert norm(0.01) > 1e-3
    assert norm(0.01) == norm(0.01)
    assert norm(0.01) != norm(0.01, seed=1)


def test_nan_in_the_images_names_the_iteration(toys: ModuleType) -> None:
    for where in ("pairs", "task"):
        model = toys.mlp()
        guide = Guidance(model, toys.build(model), every=2)
        for i in range(5):
            (x, y), pairs = toys.batch(seed=i), toys.pairs(seed=i)
            if i == 2:
                (pairs.second if where == "pairs" else x)[0, 0] = math.nan
            guide.step(toys.task(model, (x, y)), pairs)
            if i < 2:
                guide.check()
        with pytest.raises(NonFiniteError, match=r"at iteration 3\. Likely causes: a NaN in the images"):
            guide.check()
        assert guide.skipped.item() >= 3
