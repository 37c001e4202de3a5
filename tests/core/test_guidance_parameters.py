"""Which parameters a correction reaches, in which modes and in which precision."""

from __future__ import annotations

import math
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.guidance import Guidance, Pairs

# -- which parameters, which modes ----------------------------------------------------------------------------------


def test_head_bias_takes_the_corrective_update_with_a_zero_gradient(toys: ModuleType) -> None:
    """Under Adam a zero gradient still moves a parameter that has momentum; None would leave it where it is."""
    model = toys.mlp()
    optimizer = toys.build(model, "adam")
    guide = Guidance(model, optimizer)
    gradients = toys.watch_gradients(optimizer)
    guide.step(toys.task(model, toys.batch()), toys.pairs())
    bias = model[-1].bias
    assert torch.equal(gradients[0][-1], torch.zeros_like(bias))
    assert optimizer.state[bias]["step"].item() == 2
    before, moment = bias.detach().clone(), optimizer.state[bias]["exp_avg"].clone()
    assert moment.abs().min() > 0
    guide.correct(toys.pairs())
    assert (bias - before).abs().min() > 1e-4
    torch.testing.assert_close(optimizer.state[bias]["exp_avg"], 0.9 * moment)


def test_frozen_parameters_are_untouched(toys: ModuleType) -> None:
    model = toys.mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    before = model[0].weight.clone()
    guide = Guidance(model, optimizer, margin=0.5)
    for _ in range(3):
        guide.step(toys.task(model, toys.batch()), toys.pairs())
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None
    assert len(guide.parameters()) == 4


def test_weight_decay_acts_in_both_updates(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), margin=0.0)
    before = toys.bits(model)
    guide.step(toys.task(model, toys.batch()), toys.pairs(shift=0.0))  # both gradients are zero here
    torch.testing.assert_close(toys.bits(model), before * (1 - 0.1 * 0.5) ** 2)


def test_dropout_is_off_in_the_pair_forward_and_modes_come_back(toys: ModuleType) -> None:
    model = toys.Modes()
    model.train()
    model.body.eval()  # somebody's own choice, which must come back as it was
    guide = Guidance(model, toys.build(model))
    report = guide.step(toys.task(model, toys.batch(dtype=torch.float32)), toys.pairs(shift=0.0, dtype=torch.float32))
    assert report.alignment.item() < 1e-6  # identical members under two dropouts
    ours = {"body": False, "norm": True, "drop": True, "head": True}
    while_compared = {"body": False, "norm": True, "drop": False, "head": False}
    assert model.seen == [while_compared, ours]
    guide.terms(toys.pairs(dtype=torch.float32))  # outside `comparing`, too
    assert model.seen[-1] == while_compared
    model.fail = True
    with pytest.raises(KeyError, match="planted"):
        guide.correct(toys.pairs(dtype=torch.float32))
    assert {name: module.training for name, module in model.named_modules() if name} == ours
    assert model.training


def test_batch_norm_train_sees_both_members_in_one_forward(toys: ModuleType) -> None:
    model = toys.Modes()
    pairs = toys.pairs(dtype=torch.float32)
    x = torch.cat([pairs.first, pairs.second])
    hidden = model.body(x).detach()
    guide = Guidance(model, toys.build(model))
    guide.correct(pairs)
    assert len(model.seen) == 1
    assert model.norm.num_batches_tracked.item() == 1
    torch.testing.assert_close(model.norm.running_mean, 0.1 * hidden.mean(dim=0))
    torch.testing.assert_close(model.norm.running_var, 0.9 + 0.1 * hidden.var(dim=0))
    toys.task(model, toys.batch(dtype=torch.float32))()
    assert model.norm.num_batches_tracked.item() == 2


@pytest.mark.parametrize("policy", ["train", "eval"])
def test_instance_norm_that_tracks_statistics_is_as_batch_norm(toys: ModuleType, policy: Any) -> None:
    """Pairs by the statistics it keeps beside task images by their own would be compared in another network."""
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())
    model = nn.Sequential(*model, nn.Linear(6, 2)).train()
    guide = Guidance(model, toys.build(model), batch_norm=policy)
    seen = [model[1].running_mean.clone()]
    guide.correct(toys.pairs(dtype=torch.float32))
    seen.append(model[1].running_mean.clone())
    model.train()
    model(toys.batch(dtype=torch.float32)[0])
    seen.append(model[1].running_mean.clone())
    assert [torch.equal(*both) for both in pairwise(seen)] == [policy == "eval"] * 2


def test_batch_norm_eval_survives_model_train(toys: ModuleType) -> None:
    model = toys.Modes()
    guide = Guidance(model, toys.build(model), batch_norm="eval", every=2)
    for _ in range(4):
        model.train()
        guide.step(toys.task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))
    model.train()
    guide.step(toys.task(model, toys.batch(dtype=torch.float32)), None)
    assert len(model.seen) == 7
    assert not any(seen["norm"] for seen in model.seen)
    assert sum(seen["drop"] for seen in model.seen) == 5  # the task batches still have their dropout
    assert model.norm.num_batches_tracked.item() == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(8))


# -- precision ------------------------------------------------------------------------------------------------------


def scaled_run(
    toys: ModuleType, scaler: Any, iterations: int = 4, name: str = "adam", **options: Any
) -> tuple[nn.Module, Guidance]:
    model = toys.mlp(dtype=torch.float32)
    guide = Guidance(model, toys.build(model, name), scaler=scaler, margin=0.5, **options)
    for i in range(iterations):
        guide.step(toys.task(model, toys.batch(seed=i, dtype=torch.float32)), toys.pairs(seed=i, dtype=torch.float32))
    return model, guide


@pytest.mark.parametrize("name", ["momentum", "adam"])
@pytest.mark.parametrize("options", [{}, {"tau": 1.0, "strict": True, "floor": 9.0}], ids=["violated", "met"])
def test_grad_scaler_changes_nothing_while_all_is_finite(toys: ModuleType, name: str, options: dict[str, Any]) -> None:
    plain, _ = scaled_run(toys, None, name=name, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaled, guide = scaled_run(toys, scaler, name=name, **options)
    torch.testing.assert_close(toys.bits(scaled), toys.bits(plain), atol=1e-6, rtol=1e-5)
    off, _ = scaled_run(toys, torch.amp.GradScaler("cpu", enabled=False), name=name, **options)
    assert torch.equal(toys.bits(off), toys.bits(plain))
    assert guide.skipped.item() == 0
    assert scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("unscaled", [False, True], ids=["by rescale", "before"])
def test_grad_scaler_with_accumulation(toys: ModuleType, unscaled: bool) -> None:
    plain, _ = scaled_run(toys, None, iterations=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model = toys.mlp(dtype=torch.float32)
    optimizer = toys.build(model, "adam")
    guide = Guidance(model, optimizer, scaler=scaler, margin=0.5)
    for i in range(2):
        x, y = toys.batch(seed=i, dtype=torch.float32)
        correction = guide.correct(toys.pairs(seed=i, dtype=torch.float32))
        for rows in torch.arange(12).chunk(2):
            scaler.scale(toys.task(model, (x[rows], y[rows]))() / 2).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        guide.rescale(correction)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.testing.assert_close(toys.bits(model), toys.bits(plain), atol=1e-5, rtol=1e-4)


def test_what_else_a_grad_scaler_refuses_is_refused(toys: ModuleType) -> None:
    """A correction after `unscale_` alone, or a rescaling after `step`, would not be unscaled by anybody."""
    model, scaler = toys.mlp(dtype=torch.float32), torch.amp.GradScaler("cpu")
    guide = Guidance(model, toys.build(model), scaler=scaler)
    pairs, task = toys.pairs(dtype=torch.float32), toys.task(model, toys.batch(dtype=torch.float32))
    correction = guide.correct(pairs)
    scaler.scale(task()).backward()
    scaler.unscale_(guide.optimizer)
    guide.optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="already been called"):
        guide.correct(pairs)
    guide.optimizer.zero_grad()
    scaler.scale(task()).backward()
    scaler.step(guide.optimizer)
    with pytest.raises(RuntimeError, match=r"called after step\(\)"):
        guide.rescale(correction)


@pytest.mark.parametrize("around", [False, True])
def test_fp16_without_a_scaler_is_told_of_once(toys: ModuleType, around: bool) -> None:
    """Where a scaler is not known, the task gradient is divided by its scale after it got its length."""

    def guided(dtype: torch.dtype, **options: Any) -> None:
        model = toys.mlp(dtype=torch.float32)
        guide = Guidance(model, toys.build(model), autocast=None if around else dtype, **options)
        with torch.autocast("cpu", dtype=dtype, enabled=around):
            for _ in range(2):
                guide.step(toys.task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))

    with pytest.warns(UserWarning, match="Guidance knows of no GradScaler") as caught:
        guided(torch.float16)
    (warning,) = caught
    assert warning.filename == __file__
    guided(torch.float16, scaler=torch.amp.GradScaler("cpu"))
    guided(torch.bfloat16)


@pytest.mark.parametrize("after", [0, 1], ids=["correction", "task"])
def test_an_update_that_is_interrupted_leaves_a_grad_scaler_ready(toys: ModuleType, after: int) -> None:
    """As in a notebook, where somebody stops a cell and runs it again."""
    model, guide = scaled_run(toys, torch.amp.GradScaler("cpu"), iterations=1)
    updates = iter(range(2))

    def stop(*_: object) -> None:
        if next(updates) == after:
            raise KeyboardInterrupt

    task, pairs = toys.task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32)
    hook = guide.optimizer.register_step_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        guide.step(task, pairs)
    hook.remove()
    before = toys.bits(model)
    guide.step(task, pairs)
    assert not torch.equal(toys.bits(model), before)


def test_non_finite_correction_under_a_grad_scaler_is_skipped_and_counted(toys: ModuleType) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, guide = scaled_run(toys, scaler, iterations=1)
    before, last = toys.bits(model), guide.correction.values.clone()
    bad = toys.pairs(dtype=torch.float32)
    bad.first[0, 0] = math.inf
    guide.correct(bad)
    assert torch.equal(toys.bits(model), before)
    assert torch.equal(guide.correction.values, last)
    assert guide.skipped.item() == 1
    assert scaler.get_scale() == 2.0**9
    toys.task(model, toys.batch(dtype=torch.float32))().mul(scaler.get_scale()).backward()
    report = guide.rescale(guide.correction)
    assert report.scale.item() * report.task_norm.item() == pytest.approx(0.1 * last[3].item(), rel=1e-5)
    scaler.step(guide.optimizer)
    scaler.update()
    assert not torch.equal(toys.bits(model), before)
    guide.check()  # a scaler is there to skip such steps


def test_non_finite_task_gradient_under_a_grad_scaler_is_skipped(toys: ModuleType) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, guide = scaled_run(toys, scaler, iterations=1)
    x, y = toys.batch(dtype=torch.float32)
    x[0, 0] = math.inf
    guide.step(toys.task(model, (x, y)), toys.pairs(dtype=torch.float32))
    assert torch.isfinite(toys.bits(model)).all()
    assert guide.skipped.item() == 1


def test_parameters_that_share_a_gradient_are_unscaled_once_each(toys: ModuleType) -> None:
    """`autograd.grad` hands parameters that enter as a sum one and the same tensor, and a scaler works in place."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.full((5, 6), 0.3)), nn.Parameter(torch.full((5, 6), 0.2))
            self.head = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.linear(x, self.one + self.two).tanh())

    def norm(scaler: Any) -> float:
        torch.manual_seed(3)
        model = Sum()
        guide = Guidance(model, toys.build(model), scaler=scaler, margin=0.5)
        correction = guide.correct(toys.pairs(dtype=torch.float32))
        torch.testing.assert_close(model.one - model.two, torch.full((5, 6), 0.1))  # both moved alike
        return correction.norm.item()

    assert norm(torch.amp.GradScaler("cpu", init_scale=2.0**10)) == pytest.approx(norm(None), rel=1e-5)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=["fused", "foreach", "default"])
def test_gradients_have_the_layout_of_their_parameters(options: dict[str, bool]) -> None:
    """Images in channels_last give a weight a gradient in channels_last, which a fused update would misread."""

    def run(memory_format: torch.memory_format) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
        first = torch.randn(4, 3, 9, 9).to(memory_format=memory_format)
        second = (first + torch.randn(4, 3, 1, 1)).to(memory_format=memory_format)
        guide = Guidance(model, optimizer, margin=1.0)
        for _ in range(2):
            guide.correct(Pairs(first, second, torch.tensor([0, 1, 0, 1])))
        return [p.detach() for p in model.parameters()]

    torch.testing.assert_close(run(torch.channels_last), run(torch.contiguous_format), atol=1e-5, rtol=1e-5)


def test_bf16_autocast_runs_the_pairs_in_bf16_and_measures_in_single(toys: ModuleType, naive: ModuleType) -> None:
    model = toys.mlp(dtype=torch.float32)
    pairs = toys.pairs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        first, second = model[:-1](pairs.first), model[:-1](pairs.second)
    assert first.dtype == torch.bfloat16
    weight = model[-1].weight.detach()
    built = [[naive.rationale(z.float(), weight) for z in half] for half in (first, second)]
    guide = Guidance(model, toys.build(model), autocast=torch.bfloat16, margin=0.5)
    terms = guide.terms(pairs)
    assert terms.alignment.dtype == torch.float32
    assert terms.alignment.item() == pytest.approx(naive.alignment(*built).item(), rel=1e-5)
    assert terms.uniformity.item() == pytest.approx(
        naive.uniformity(*built, pairs.label.tolist(), 0.5).item(), rel=1e-5
    )
    full = Guidance(model, toys.build(model), margin=0.5).terms(pairs)
    assert terms.alignment.item() != full.alignment.item()
    assert terms.alignment.item() == pytest.approx(full.alignment.item(), rel=0.05)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_step_inside_autocast_sees_the_corrected_weights(toys: ModuleType, autocast: torch.dtype | None) -> None:
    """Autocast keeps its copies of the weights until its outermost context ends, past the corrective update."""
    inside, outside = toys.mlp(dtype=torch.float32), toys.mlp(dtype=torch.float32)
    guides = [
        Guidance(inside, toys.build(inside), autocast=autocast, margin=0.5),
        Guidance(outside, toys.build(outside), autocast=torch.bfloat16, margin=0.5),
    ]

    def apart(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(outside(x), y)

    for i in range(3):
        x, y = toys.batch(seed=i, dtype=torch.float32)
        pairs = toys.pairs(seed=i, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guides[0].step(lambda x=x, y=y: F.cross_entropy(inside(x), y), pairs)
        guides[1].step(lambda x=x, y=y: apart(x, y), pairs)
    torch.testing.assert_close(toys.bits(inside), toys.bits(outside), atol=1e-6, rtol=1e-5)


class Spectral(nn.Module):
    """A filter of complex numbers, as such or as pairs of real ones, and a head."""

    def __init__(self, *, as_real: bool) -> None:
        super().__init__()
        filters = torch.randn(6, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
        self.filters = nn.Parameter(torch.view_as_real(filters).clone() if as_real else filters)
        self.head = nn.Linear(6, 2, dtype=torch.float64)
        nn.init.constant_(self.head.weight, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        filters = self.filters if self.filters.is_complex() else torch.view_as_complex(self.filters)
        logits: Tensor = self.head(torch.fft.ifft(torch.fft.fft(x) * filters).abs())
        return logits


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_complex_parameters_are_guided_as_pairs_of_real_ones(toys: ModuleType, name: str) -> None:
    def guided(*, as_real: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Spectral(as_real=as_real)
        guide = Guidance(model, toys.build(model, name), margin=1.0)
        reports = [guide.step(toys.task(model, toys.batch(seed=seed)), toys.pairs()) for seed in range(4)]
        filters = model.filters.detach()
        values = filters if as_real else torch.view_as_real(filters)
        return [*(value for report in reports for value in report), values, *model.head.parameters()]

    torch.testing.assert_close(guided(as_real=False), guided(as_real=True), rtol=1e-12, atol=1e-14)
