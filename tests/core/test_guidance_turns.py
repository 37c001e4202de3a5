"""Corrections now and then: `every`, resuming, accumulation, and a time without pairs."""

from __future__ import annotations

import copy
import gc
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ipg.guidance import Guidance, Pairs
from ipg.pairs.pairset import PairSampler

# -- every, resuming, accumulation ----------------------------------------------------------------------------------


def test_every_draws_only_when_due_and_reuses_the_last_correction(toys: ModuleType) -> None:
    model, sampler = toys.mlp(), toys.Sampler()
    guide = Guidance(model, toys.build(model, "adam"), every=3, alpha=0.2)
    due, norms = [], []
    for i in range(7):
        due.append(guide.due)
        report = guide.step(toys.task(model, toys.batch(seed=i)), sampler)
        norms.append(report.correction_norm.item())
        assert report.scale.item() * report.task_norm.item() == pytest.approx(0.2 * norms[-1])
    assert due == [True, False, False, True, False, False, True]
    assert sampler.drawn == 3
    assert norms[0] == norms[1] == norms[2] != norms[3] == norms[4] == norms[5] != norms[6]
    assert guide.iteration == 7


def test_every_may_be_a_whole_number_of_numpy(toys: ModuleType) -> None:
    """As columns of tables and ranges of searches have them."""
    model = toys.mlp()
    guide, sampler = Guidance(model, toys.build(model), every=np.int64(3)), toys.Sampler()
    for _ in range(7):
        guide.step(toys.task(model, toys.batch()), sampler)
    assert sampler.drawn == 3
    assert guide.due is False


@pytest.mark.parametrize("margin", [0.5, "0.5x"])
def test_resume_inside_a_cycle_is_exact(toys: ModuleType, margin: float | str) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, Guidance]:
        model = toys.mlp(dtype=torch.float32)
        optimizer = toys.build(model, "adam")
        return model, optimizer, Guidance(model, optimizer, every=4, margin=margin)

    def run(model: nn.Module, guide: Guidance, sampler: Any, start: int, stop: int) -> None:
        for i in range(start, stop):
            guide.step(toys.task(model, toys.batch(seed=i, dtype=torch.float32)), sampler)

    model, optimizer, guide = fresh()
    sampler = toys.Sampler(dtype=torch.float32)
    run(model, guide, sampler, 0, 6)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), guide.state_dict()])
    drawn = sampler.drawn
    run(model, guide, sampler, 6, 12)

    def resume(state: dict[str, Any] | None) -> tuple[nn.Module, torch.optim.Optimizer, Guidance]:
        other, its_optimizer, its_guide = fresh()
        other.load_state_dict(saved[0])
        its_optimizer.load_state_dict(copy.deepcopy(saved[1]))
        if state is not None:
            its_guide.load_state_dict(state)
        run(other, its_guide, toys.Sampler(drawn, dtype=torch.float32), 6, 12)
        return other, its_optimizer, its_guide

    other, its_optimizer, its_guide = resume(saved[2])
    assert torch.equal(toys.bits(other), toys.bits(model))
    assert torch.equal(toys.state_bits(its_optimizer), toys.state_bits(optimizer))
    for name, value in guide.state_dict().items():
        assert torch.equal(torch.as_tensor(its_guide.state_dict()[name]), torch.as_tensor(value)), name
    assert not torch.equal(toys.bits(resume(None)[0]), toys.bits(model))  # without its state it is another run


def test_state_survives_saving_and_keeps_its_tensors(toys: ModuleType, tmp_path: Any) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), margin="0.5x")
    guide.step(toys.task(model, toys.batch()), toys.pairs())
    copied = guide.state_dict()
    torch.save(copied, tmp_path / "guide.pt")
    state = torch.load(tmp_path / "guide.pt", weights_only=True)
    other = Guidance(model, toys.build(model), margin="0.5x")
    held = other.correction, other.margin
    other.load_state_dict(state)
    assert other.iteration == 1
    assert other.correction is held[0]
    assert held[0].norm.item() == guide.correction.norm.item() > 0
    assert held[1].item() == guide.margin.item() > 0
    guide.step(toys.task(model, toys.batch()), toys.pairs())
    assert held[0].norm.item() != guide.correction.norm.item()
    for name, value in state.items():  # a state is a copy, not a window
        assert torch.equal(torch.as_tensor(copied[name]), torch.as_tensor(value)), name
    with pytest.raises(ValueError, match=r"not the state of a Guidance.*margin"):
        other.load_state_dict({k: v for k, v in state.items() if k != "margin"})
    with pytest.raises(ValueError, match=r"not the state of a Guidance.*\['pears'\]"):
        other.load_state_dict(state | {"pears": 1})
    fresh = Guidance(model, toys.build(model), margin="0.5x")
    early = fresh.state_dict()
    fresh.correct(toys.pairs())
    assert math.isnan(early["margin"])  # measured since


def test_accumulation_equals_the_step_on_the_whole_batch(toys: ModuleType) -> None:
    whole, parts = toys.mlp(), toys.mlp()
    optimizers = [toys.build(model, "adam") for model in (whole, parts)]
    guides = [Guidance(whole, optimizers[0], every=2), Guidance(parts, optimizers[1], every=2)]
    for i in range(5):
        x, y = toys.batch(12, seed=i)
        pairs = toys.pairs(seed=i)
        report = guides[0].step(toys.task(whole, (x, y)), pairs)
        correction = guides[1].correct(pairs)
        for rows in torch.arange(12).chunk(3):
            (toys.task(parts, (x[rows], y[rows]))() / 3).backward()
        other = guides[1].rescale(correction)
        optimizers[1].step()
        optimizers[1].zero_grad()
        torch.testing.assert_close(toys.bits(parts), toys.bits(whole), atol=1e-12, rtol=1e-12)
        assert math.isnan(other.task_loss.item())  # the caller knows it, the guide does not
        for name in ("alignment", "correction_norm", "task_norm", "scale", "violated"):
            assert getattr(other, name).item() == pytest.approx(getattr(report, name).item(), rel=1e-10)


def test_the_correction_of_another_guidance_may_be_gone_by(toys: ModuleType) -> None:
    """As by one that corrects the same model with pairs of another kind."""
    model = toys.mlp()
    correcting, rescaling = (Guidance(model, toys.build(model)) for _ in range(2))
    correction = correcting.correct(toys.pairs())
    toys.task(model, toys.batch())().backward()
    report = rescaling.rescale(correction)
    assert report.scale.item() * report.task_norm.item() == pytest.approx(0.1 * correction.norm.item())


def test_the_task_gradient_is_taken_at_the_corrected_parameters(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    pairs, seen = toys.pairs(), []

    def loss() -> Tensor:
        seen.append(toys.bits(model))
        return toys.task(model, toys.batch())()

    before = toys.bits(model)
    twin = copy.deepcopy(model)
    guide.step(loss, pairs)
    Guidance(twin, toys.build(twin)).correct(pairs)
    assert torch.equal(seen[0], toys.bits(twin))
    assert not torch.equal(seen[0], before)


# -- without pairs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
def test_step_without_pairs_is_plain_training_bit_for_bit(toys: ModuleType, name: str) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(5)
        model = toys.Modes()
        return model, toys.build(model, name)

    plain, optimizer = fresh()
    for i in range(5):
        optimizer.zero_grad()
        toys.task(plain, toys.batch(seed=i, dtype=torch.float32))().backward()
        optimizer.step()
    guided, its_optimizer = fresh()
    guide = Guidance(guided, its_optimizer)
    for i in range(5):
        report = guide.step(toys.task(guided, toys.batch(seed=i, dtype=torch.float32)), None)
    assert torch.equal(toys.bits(guided), toys.bits(plain))
    assert torch.equal(toys.state_bits(its_optimizer), toys.state_bits(optimizer))
    numbers = report.numbers()
    assert numbers["scale"] == 1
    assert numbers["task_loss"] > 0
    assert math.isnan(numbers["alignment"])
    assert numbers["violated"] == numbers["clipped"] == numbers["floored"] == 0
    assert guide.iteration == 0
    guide.correct(toys.pairs(dtype=torch.float32))  # nothing is left behind that a correction would refuse


@pytest.mark.parametrize("used", [False, True])
def test_settings_are_those_of_the_object_that_loads_a_state(toys: ModuleType, used: bool) -> None:
    """A margin that was given is a setting; one that was measured belongs to the run, as long as it is asked for."""

    def margin(saved: float | str, asked: float | str) -> tuple[float, float]:
        model = toys.mlp()
        guide = Guidance(model, toys.build(model), margin=saved)
        guide.correct(toys.pairs())
        other = Guidance(model, toys.build(model), margin=asked)
        if used:
            other.correct(toys.pairs(seed=3))
        other.load_state_dict(guide.state_dict())
        return guide.margin.item(), other.margin.item()

    assert margin(0.1, 2.0)[1] == 2.0
    assert math.isnan(margin(0.1, "0.5x")[1])
    assert math.isnan(margin("0.5x", "0.85x")[1])
    assert margin("0.5x", 2.0)[1] == 2.0
    measured, kept = margin("0.5x", "0.5x")
    assert measured == kept > 0


def test_states_of_before_the_kind_of_margin_was_kept_are_gone_on_with(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), margin="0.5x")
    guide.correct(toys.pairs())
    state = {name: value for name, value in guide.state_dict().items() if name not in ("relative", "watch.widest")}
    other = Guidance(model, toys.build(model), margin="0.5x")
    other.load_state_dict(state)
    assert other.margin == guide.margin


WRONG_STATES: list[tuple[str, Any, str]] = [
    ("iteration", None, "iteration must be int, got NoneType"),
    ("iteration", "3", "iteration must be int, got str"),
    ("correction", torch.tensor(1.0), r"correction must be a tensor of shape \(4,\), float64, got .* shape \(\), fl"),
    ("correction", [0.0] * 4, r"correction must be a tensor of shape \(4,\), float64, got list"),
    ("correction", torch.zeros(4, dtype=torch.complex64), r"correction must be .* got a tensor .*, complex64"),
    (
        "margin",
        torch.zeros(2),
        r"margin must be a tensor of shape \(\), float64, got .* \(2,\), float32",
    ),
    ("relative", "0.5x", "relative must be float, got str"),
    (
        "watch.counters",
        torch.zeros(7, dtype=torch.int64),
        r"watch\.counters must be .*\(6,\), .* or .*\(4,\), .*\(7,\)",
    ),
    ("watch.counters", torch.zeros(6), r"watch\.counters must be .*, int64, got a tensor of shape \(6,\), float32"),
    ("watch.widest", torch.zeros(1), r"watch\.widest must be a tensor of shape \(\)"),
    ("pace", None, "the state of a Guidance: pace must be dict, got NoneType"),
    ("pace", {"k": 2, "last": 0}, r"Guidance's pace: missing or unknown \['disagreement'\]"),
    ("pace", {"k": "2", "last": 0, "disagreement": 0.0}, "Guidance's pace: k must be int, got str"),
    ("pace", {"k": 2, "last": 0.5, "disagreement": 0.0}, "Guidance's pace: last must be int or NoneType, got float"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_STATES)
def test_a_state_with_anything_wrong_in_it_changes_nothing(
    toys: ModuleType, name: str, value: Any, message: str
) -> None:
    model = toys.mlp()
    guide, other = (Guidance(model, toys.build(model), margin="0.5x", every="auto") for _ in range(2))
    for _ in range(2):
        guide.correct(toys.pairs())
    before = other.state_dict()
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(guide.state_dict() | {name: value})
    for key, kept in other.state_dict().items():
        assert repr(kept) == repr(before[key]), key
    other.load_state_dict(guide.state_dict())
    assert other.iteration == 2


def test_what_is_no_state_at_all_is_named(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.raises(ValueError, match="not the state of a Guidance: expected a dictionary, got list"):
        Guidance(model, toys.build(model)).load_state_dict([])  # type: ignore[arg-type]


def test_states_of_another_precision_or_of_numpy_numbers_are_gone_on_with(toys: ModuleType) -> None:
    model, wide = toys.mlp(dtype=torch.float32), toys.mlp()
    guide, other = (Guidance(one, toys.build(one)) for one in (model, wide))
    guide.correct(toys.pairs(dtype=torch.float32))
    other.load_state_dict(guide.state_dict() | {"iteration": np.int64(1)})
    assert (other.iteration, other.correction.norm.item()) == (1, guide.correction.norm.item())
    guide.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("generator", 3, r"generator must be a tensor of shape \(\d+,\), uint8, got int"),
        ("generator", torch.zeros(5, dtype=torch.uint8), r"generator must be .*, got a tensor of shape \(5,\), uint8"),
        ("order", None, r"order must be a tensor of shape \(6,\), int64, got NoneType"),
        ("order", torch.arange(7), "a sampler over 7 pairs, not 6"),
        ("order", torch.arange(6.0), r"order must be a tensor of shape \(6,\), int64, got .*, float32"),
        ("order", torch.arange(6) + 1, "order must hold each row from 0 to 5 once"),
        ("position", "4", "position must be int, got str"),
        ("position", 7, "position must be from 0 to 6, got 7"),
    ],
)
def test_a_sampler_is_not_changed_by_a_wrong_state(toys: ModuleType, name: str, value: Any, message: str) -> None:
    there, here = PairSampler(toys.pairs(), 4), PairSampler(toys.pairs(), 4, seed=1)
    there.draw()
    here.draw()
    before = here.state_dict()
    with pytest.raises(ValueError, match=message):
        here.load_state_dict(there.state_dict() | {name: value})
    for key, kept in here.state_dict().items():
        assert torch.equal(torch.as_tensor(kept), torch.as_tensor(before[key])), key


def test_until_a_correction_was_finite_no_step_is_taken_without_one(toys: ModuleType) -> None:
    """A GradScaler skips corrections that overflow: nothing is known of the pairs then, and tau is not met."""
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), tau=0.3)
    pairs = toys.pairs()
    pairs.first[0, 0] = math.inf
    correction = guide.correct(pairs)
    assert correction.disagreement == 1
    assert correction.norm == 0


def test_no_hook_outlives_its_guidance(toys: ModuleType) -> None:
    model = toys.mlp()
    for _ in range(3):
        guide = Guidance(model, toys.build(model))
        guide.correct(toys.pairs())
    del guide
    gc.collect()
    assert not model[-1]._forward_hooks


def test_a_forward_pass_that_fails_leaves_nothing_behind(toys: ModuleType) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("behind the head")

    model = toys.mlp()
    head = model[-1]
    guide = Guidance(nn.Sequential(model, Fails()), toys.build(model), head=head)
    with pytest.raises(RuntimeError, match="behind the head"):
        guide.correct(toys.pairs())
    assert guide._forward.tap._calls == []
    copy.deepcopy(model)


def test_parameters_of_several_precisions_in_any_order(toys: ModuleType) -> None:
    narrow, wide = nn.Linear(6, 4), nn.Linear(4, 2).double()

    class Widens(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double()

    model = nn.Sequential(narrow, Widens(), wide)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1))
    guide.step(lambda: model(toys.batch(dtype=torch.float32)[0]).square().mean(), toys.pairs(dtype=torch.float32))
    assert guide.correction.norm.dtype == torch.float64
    assert guide.correction.norm > 0


def test_a_share_that_equals_tau_violates_the_condition_beside_a_parameter_in_double(toys: ModuleType) -> None:
    """7/10 in single precision lies below 0.7 in double, in which the correction is kept here."""
    model = nn.Sequential(nn.Linear(6, 2))
    temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
    nn.init.constant_(model[0].bias, 0.0)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]).expand(2, 6))
    first = torch.ones(10, 6)
    second = torch.where(torch.arange(10)[:, None] < 7, -first, first)
    guide = Guidance(model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1), tau=0.7)
    report = guide.step(lambda: model(first).square().mean() * temperature, Pairs(first, second, torch.arange(10) % 2))
    assert report.disagreement == 0.7
    assert report.violated


def test_a_closed_guidance_says_so(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    guide.close()
    with pytest.raises(RuntimeError, match=r"no features reached the head.*this Guidance was closed"):
        guide.correct(toys.pairs())


@pytest.mark.parametrize("options", [{"every": "auto"}, {"margin": "0.5x", "jitter": 0.1}], ids=["auto", "relative"])
def test_the_default_device_does_not_matter(toys: ModuleType, options: dict[str, Any]) -> None:
    def guided(device: str) -> Tensor:
        model, pairs, batch = toys.mlp(), toys.pairs(), toys.batch()
        torch.manual_seed(0)
        with torch.device(device):
            guide = Guidance(model, toys.build(model), **options)
            for _ in range(3):
                guide.step(toys.task(model, batch), pairs)
            guide.check()
            guide.load_state_dict(guide.state_dict())
        return toys.bits(model)

    assert torch.equal(guided("meta"), guided("cpu"))
