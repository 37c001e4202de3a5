"""The step against Algorithm 1 as it is printed, against numbers worked out by hand, and at its edges."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.comparison import _collapsed
from ipg.guidance import CollapseError, Guidance, NonFiniteError, Pairs, task_scale
from ipg.watch import COLLAPSE_PATIENCE, count_collapse

EXACT = {"atol": 1e-10, "rtol": 1e-10}


def build(toys: ModuleType, model: nn.Module, name: str = "sgd") -> torch.optim.Optimizer:
    kind, options = toys.OPTIMIZERS[name]
    return kind(model.parameters(), **options)


def watch_gradients(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """The gradients that each coming update is made with."""
    seen: list[list[Tensor]] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        seen.append([p.grad.clone() for p in parameters])

    optimizer.register_step_pre_hook(keep)
    return seen


def task(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(model(batch[0]), batch[1])


# -- against the naive form -----------------------------------------------------------------------------------------


def follow(
    naive: ModuleType,
    toys: ModuleType,
    *,
    classes: int = 2,
    optimizer: str | Callable[[nn.Module], torch.optim.Optimizer] = "sgd",
    iterations: int = 10,
    every: int = 1,
    shift: float = 3.0,
    **options: Any,
) -> set[str]:
    """Run the real and the naive form side by side, hold everything equal, and say which branches were taken."""
    model = toys.mlp(classes=classes)
    twin = copy.deepcopy(model)
    slow = naive.Net(twin[:-1], twin[-1])
    make = optimizer if callable(optimizer) else lambda m: build(toys, m, optimizer)
    fast_optimizer, slow_optimizer = make(model), make(twin)
    guide = Guidance(model, fast_optimizer, every=every, **options)
    gradients = watch_gradients(fast_optimizer)
    rule = {"alpha": 0.1, "tau": 0.0, "strict": False} | {
        k: options[k] for k in options if k in ("alpha", "tau", "strict")
    }
    epsilon, margin = options.get("floor", 1e-3), options.get("margin", 0.1)
    branches: set[str] = set()
    correction = None
    for i in range(iterations):
        x, y = toys.batch(classes=classes, seed=10 + i)
        pairs = toys.pairs(classes=classes, seed=50 + i, shift=shift)
        gradients.clear()
        report = guide.step(task(model, (x, y)), pairs).numbers()
        if i % every == 0:
            correction = naive.correct(slow, slow_optimizer, pairs.first, pairs.second, pairs.label, margin=margin)
            torch.testing.assert_close(gradients.pop(0), correction.gradients, **EXACT)
        outcome = naive.task_update(slow, slow_optimizer, x, y, correction, epsilon=epsilon, **rule)
        torch.testing.assert_close(gradients.pop(0), outcome.gradients, **EXACT)
        assert not gradients
        expected = {
            "task_loss": outcome.task_loss,
            "alignment": correction.alignment,
            "uniformity": correction.uniformity,
            "disagreement": correction.disagreement,
            "correction_norm": correction.norm,
            "task_norm": outcome.task_norm,
            "scale": outcome.scale,
            "violated": float(outcome.violated),
            "clipped": float(outcome.clipped),
            "floored": float(outcome.floored),
        }
        assert report == pytest.approx(expected, abs=1e-10, rel=1e-10)
        torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()), **EXACT)
        branches |= {name for name in ("violated", "clipped", "floored") if report[name]}
        branches |= {"free"} if not (report["violated"] or report["clipped"]) else set()
        branches |= {"hinge"} if report["uniformity"] > 0 else set()
    return branches


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"tau": 0.0, "margin": 0.5}, {"violated", "hinge"}),
        ({"tau": 1.0, "alpha": 0.5, "margin": 0.0, "strict": True, "floor": 0.05}, {"clipped", "free"}),
    ],
    ids=["violated", "met"],
)
def test_ten_iterations_equal_the_naive_form(
    naive: ModuleType, toys: ModuleType, optimizer: str, options: dict[str, Any], taken: set[str]
) -> None:
    branches = follow(naive, toys, optimizer=optimizer, classes=3, **options)
    assert branches & {"violated", "hinge"} == taken & {"violated", "hinge"}
    assert branches & taken


@pytest.mark.parametrize("classes", range(2, 8))
def test_every_number_of_classes_equals_the_naive_form(naive: ModuleType, toys: ModuleType, classes: int) -> None:
    assert "hinge" in follow(naive, toys, classes=classes, optimizer="adam", tau=0.5, margin=1.0, iterations=4)


def test_both_branches_in_one_run(naive: ModuleType, toys: ModuleType) -> None:
    branches = follow(naive, toys, classes=3, tau=0.5, alpha=0.9, margin=0.5, floor=1e-6, optimizer="adam")
    assert {"violated", "hinge"} < branches
    assert branches & {"clipped", "free"}


def test_unclipped_branch(naive: ModuleType, toys: ModuleType) -> None:
    assert "free" in follow(naive, toys, tau=1.0, strict=True, floor=100.0, iterations=3)


def test_floor_acts_when_members_are_identical(naive: ModuleType, toys: ModuleType) -> None:
    # with identical members and no margin the correction is exactly zero, so only the floor lets the task through
    branches = follow(naive, toys, shift=0.0, margin=0.0, tau=0.5, floor=0.02)
    assert branches == {"clipped", "floored"}


def test_zero_correction_stops_the_task_when_the_condition_is_violated(naive: ModuleType, toys: ModuleType) -> None:
    assert follow(naive, toys, shift=0.0, margin=0.0, tau=0.0, iterations=3) == {"violated"}
    model = toys.mlp()
    before = toys.bits(model)
    guide = Guidance(model, build(toys, model), margin=0.0)
    report = guide.step(task(model, toys.batch()), toys.pairs(shift=0.0)).numbers()
    assert report["task_norm"] > 0
    assert report["scale"] == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(toys.bits(model), before, atol=1e-12, rtol=0)


def test_alpha_zero_zeroes_the_task_gradient(naive: ModuleType, toys: ModuleType) -> None:
    follow(naive, toys, alpha=0.0, margin=0.5, iterations=3)


def test_strict_differs_at_equality(naive: ModuleType, toys: ModuleType) -> None:
    """The first disagreement of the toy as τ: `≥` counts it as violated and `>` does not."""
    model = toys.mlp(classes=3)
    delta = Guidance(model, build(toys, model)).terms(toys.pairs(classes=3, seed=50)).disagreement.item()
    assert 0 < delta < 1
    assert "violated" in follow(naive, toys, classes=3, tau=delta, iterations=1)
    assert "violated" not in follow(naive, toys, classes=3, tau=delta, strict=True, iterations=1)


def test_several_parameter_groups(naive: ModuleType, toys: ModuleType) -> None:
    def groups(model: nn.Module) -> torch.optim.Optimizer:
        head = list(model[-1].parameters())
        rest = [p for layer in model[:-1] for p in layer.parameters()]
        options = [{"params": head, "lr": 0.05}, {"params": rest, "lr": 1e-2, "weight_decay": 0.2}]
        return torch.optim.AdamW(options, betas=(0.8, 0.95))

    follow(naive, toys, optimizer=groups, margin=0.5, classes=4)


@pytest.mark.parametrize("every", [2, 3])
def test_sparse_corrections_equal_the_naive_form(naive: ModuleType, toys: ModuleType, every: int) -> None:
    branches = follow(naive, toys, every=every, alpha=0.2, margin=0.5, optimizer="adam")
    assert "violated" in branches


def test_amsgrad_and_foreach_and_fused_equal_the_naive_form(naive: ModuleType, toys: ModuleType) -> None:
    for options in ({"foreach": True, "amsgrad": True}, {"fused": True}):
        follow(
            naive,
            toys,
            optimizer=lambda m, options=options: torch.optim.Adam(m.parameters(), lr=1e-2, **options),
            margin=0.5,
            iterations=3,
        )


@pytest.mark.parametrize("distance", ["features", "logits"])
def test_other_distances_compare_what_they_say(naive: ModuleType, toys: ModuleType, distance: str) -> None:
    model, pairs = toys.mlp(classes=3), toys.pairs(classes=3)
    terms = Guidance(model, build(toys, model), distance=distance, margin=2.0).terms(pairs)
    run = model[:-1] if distance == "features" else model
    first, second = list(run(pairs.first)), list(run(pairs.second))
    assert terms.alignment.item() == pytest.approx(naive.alignment(first, second).item(), abs=1e-12)
    expected = naive.uniformity(first, second, pairs.label.tolist(), 2.0).item()
    assert terms.uniformity.item() == pytest.approx(expected, abs=1e-12)


def test_single_logit_model(naive: ModuleType, toys: ModuleType) -> None:
    model, pairs = toys.mlp(classes=1), toys.pairs(n=10, classes=2)
    model[-1].bias.data -= model(torch.cat([pairs.first, pairs.second])).mean()  # some logits on either side of 0
    slow = naive.Net(model[:-1], model[-1])
    (first, classes), (second, others) = naive.rationales(slow, pairs.first), naive.rationales(slow, pairs.second)
    terms = Guidance(model, build(toys, model), margin=1.0).terms(pairs)
    assert terms.alignment.item() == pytest.approx(naive.alignment(first, second).item(), abs=1e-12)
    assert terms.disagreement.item() == naive.disagreement(classes, others)
    assert 0 < terms.disagreement.item() < 1
    x, y = toys.batch()
    guide = Guidance(model, build(toys, model))
    report = guide.step(lambda: F.binary_cross_entropy_with_logits(model(x)[:, 0], y.double()), pairs)
    assert math.isfinite(report.numbers()["task_loss"])


# -- by hand --------------------------------------------------------------------------------------------------------
#
# Two features z = A x with A = I, a head W = [[3, 0], [4, 2]], b = (2, 0): column norms s = (5, 2).
# Two pairs, labels 0 and 1, margin 6:
#
#   z_1 = (1.6, 0)   z_1' = (2.2, 2)       (z_1' − z_1) ⊙ s = (0.6·5, 2·2)  = (3, 4)      length 5
#   z_2 = (1, 2)     z_2' = (1, 0.75)      (z_2' − z_2) ⊙ s = (0, −1.25·2)  = (0, −2.5)   length 2.5
#   L_A = (5 + 2.5)/2 = 3.75
#
#   (z_1 − z_2) ⊙ s   = (0.6·5, −2·2)      = (3, −4)    length 5     hinge 6 − 5 = 1
#   (z_1' − z_2') ⊙ s = (1.2·5, 1.25·2)    = (6, 2.5)   length 6.5   hinge 0
#   L_U = 1/(2·2²) · (two orders · 1) = 1/4
#
# Logits o_1 − o_0 = z_1 + 2 z_2 − 2 (o = W z + b): −0.4, 4.2, 3, 0.5, so pair 1 disagrees, pair 2 agrees: δ = 1/2.
#
# ∂L_A/∂z_1' = ½ (0.6, 0.8) ⊙ s = (1.5, 0.8) = −∂L_A/∂z_1;   ∂L_A/∂z_2' = ½ (0, −1) ⊙ s = (0, −1) = −∂L_A/∂z_2
# ∂L_U/∂z_1 = −¼ (0.6, −0.8) ⊙ s = (−0.75, 0.4) = −∂L_U/∂z_2
#   sums: z_1 (−2.25, −0.4)   z_2 (0.75, 0.6)   z_1' (1.5, 0.8)   z_2' (0, −1)
# ∂L_C/∂A = Σ (∂L_C/∂z) xᵀ, x = z:
#   row 1: −2.25 (1.6, 0) + 0.75 (1, 2) + 1.5 (2.2, 2) + 0 (1, 0.75)  = (0.45, 4.5)
#   row 2: −0.4 (1.6, 0) + 0.6 (1, 2) + 0.8 (2.2, 2) − 1 (1, 0.75)    = (0.72, 2.05)
# ∂L_C/∂s = ½ (0.6·0.6, 0.8·2 + 1·1.25) − ¼ (0.6·0.6, 0.8·2) = (0.18 − 0.09, 1.425 − 0.4) = (0.09, 1.025)
# ∂L_C/∂W[:, d] = ∂L_C/∂s_d · W[:, d]/s_d: column 1: 0.09 (0.6, 0.8), column 2: 1.025 (0, 1);   ∂L_C/∂b = 0
# ‖g_C‖² = 0.45² + 4.5² + 0.72² + 2.05² + 0.054² + 0.072² + 1.025² = 26.232125

HAND_NORM = math.sqrt(26.232125)


def hand_case(**options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer, Guidance, Pairs]:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[1].weight.copy_(torch.tensor([[3.0, 0.0], [4.0, 2.0]]))
        model[1].bias.copy_(torch.tensor([2.0, 0.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pairs = Pairs(
        torch.tensor([[1.6, 0.0], [1.0, 2.0]], dtype=torch.float64),
        torch.tensor([[2.2, 2.0], [1.0, 0.75]], dtype=torch.float64),
        torch.tensor([0, 1]),
    )
    return model, optimizer, Guidance(model, optimizer, margin=6.0, **options), pairs


def test_corrective_update_by_hand() -> None:
    model, _, guide, pairs = hand_case()
    correction = guide.correct(pairs)
    assert correction.alignment.item() == pytest.approx(3.75, abs=1e-12)
    assert correction.uniformity.item() == pytest.approx(0.25, abs=1e-12)
    assert correction.disagreement.item() == 0.5
    assert correction.norm.item() == pytest.approx(HAND_NORM, abs=1e-12)
    assert model[0].weight.flatten().tolist() == pytest.approx([1 - 0.045, -0.45, -0.072, 1 - 0.205], abs=1e-12)
    assert model[1].weight.flatten().tolist() == pytest.approx([3 - 0.0054, 0, 4 - 0.0072, 2 - 0.1025], abs=1e-12)
    assert model[1].bias.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("factor", "options", "length", "flags"),
    [
        # the task gradient is factor · (3, 4) on the bias, so its length is 5 · factor; δ = 1/2
        (1, {"tau": 0.5, "alpha": 0.5}, 0.5 * HAND_NORM, (True, False, False)),
        (1, {"tau": 0.5, "alpha": 0.5, "strict": True}, 5.0, (False, False, False)),  # 5 < 2 ‖g_C‖ = 10.24
        (1, {"tau": 0.6}, 5.0, (False, False, False)),
        (10, {"tau": 0.6}, 2 * HAND_NORM, (False, True, False)),  # 50 is clipped
        (10, {"tau": 0.6, "floor": 6.0}, 12.0, (False, True, True)),  # 6 > ‖g_C‖ = 5.12, so 2 · 6
    ],
)
def test_task_update_by_hand(
    factor: float, options: dict[str, Any], length: float, flags: tuple[bool, bool, bool]
) -> None:
    model, _, guide, pairs = hand_case(**options)
    report = guide.step(lambda: factor * (3 * model[1].bias[0] + 4 * model[1].bias[1]), pairs)
    assert (bool(report.violated), bool(report.clipped), bool(report.floored)) == flags
    assert report.task_norm.item() == pytest.approx(5 * factor)
    assert report.scale.item() == pytest.approx(length / (5 * factor), rel=1e-12)
    # the bias moves by lr · length along (0.6, 0.8)
    assert model[1].bias.tolist() == pytest.approx([2 - 0.1 * length * 0.6, -0.1 * length * 0.8], abs=1e-12)


def test_task_scale_at_zero_norms() -> None:
    def scale(task_norm: float, correction_norm: float, delta: float, **options: float) -> list[float]:
        given = {"alpha": 0.5, "tau": 0.5, "floor": 1e-3} | options
        outcome = task_scale(torch.tensor(task_norm), torch.tensor(correction_norm), torch.tensor(delta), **given)
        return [float(value) for value in outcome]

    assert scale(0.0, 1.0, 1.0) == [0, 1, 0, 0]  # nothing to rescale
    assert scale(0.0, 0.0, 1.0) == [0, 1, 0, 0]
    assert scale(2.0, 0.0, 1.0) == [0, 1, 0, 0]
    assert scale(0.0, 1.0, 0.0) == [1, 0, 0, 0]
    assert scale(2.0, 0.0, 0.0) == pytest.approx([2e-3 / 2, 0, 1, 1])
    assert scale(2.0, 1.0, 0.0) == [1, 0, 0, 0]  # exactly 2‖g_C‖ is not too long


# -- which parameters, which modes ----------------------------------------------------------------------------------


def test_head_bias_takes_the_corrective_update_with_a_zero_gradient(toys: ModuleType) -> None:
    """Under Adam a zero gradient still moves a parameter that has momentum; None would leave it where it is."""
    model = toys.mlp()
    optimizer = build(toys, model, "adam")
    guide = Guidance(model, optimizer)
    gradients = watch_gradients(optimizer)
    guide.step(task(model, toys.batch()), toys.pairs())
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
        guide.step(task(model, toys.batch()), toys.pairs())
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None
    assert len(guide.parameters()) == 4


def test_weight_decay_acts_in_both_updates(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), margin=0.0)
    before = toys.bits(model)
    guide.step(task(model, toys.batch()), toys.pairs(shift=0.0))  # both gradients are zero here
    torch.testing.assert_close(toys.bits(model), before * (1 - 0.1 * 0.5) ** 2)


class Modes(nn.Module):
    """Notes the mode of every module at each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 2)
        self.seen: list[dict[str, bool]] = []
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append({name: module.training for name, module in self.named_modules() if name})
        if self.fail:
            raise KeyError("planted")
        hidden = F.dropout(self.norm(self.body(x)).relu(), 0.5, self.training)  # a functional dropout as well
        return self.head(self.drop(hidden))


def test_dropout_is_off_in_the_pair_forward_and_modes_come_back(toys: ModuleType) -> None:
    model = Modes()
    model.train()
    model.body.eval()  # somebody's own choice, which must come back as it was
    guide = Guidance(model, build(toys, model))
    report = guide.step(task(model, toys.batch(dtype=torch.float32)), toys.pairs(shift=0.0, dtype=torch.float32))
    assert report.alignment.item() < 1e-6  # identical members under two dropouts
    ours = {"body": False, "norm": True, "drop": True, "head": True}
    assert model.seen == [{"body": False, "norm": True, "drop": False, "head": False}, ours]
    model.fail = True
    with pytest.raises(KeyError, match="planted"):
        guide.correct(toys.pairs(dtype=torch.float32))
    assert {name: module.training for name, module in model.named_modules() if name} == ours
    assert model.training


def test_batch_norm_train_sees_both_members_in_one_forward(toys: ModuleType) -> None:
    model = Modes()
    pairs = toys.pairs(dtype=torch.float32)
    x = torch.cat([pairs.first, pairs.second])
    hidden = model.body(x).detach()
    guide = Guidance(model, build(toys, model))
    guide.correct(pairs)
    assert len(model.seen) == 1
    assert model.norm.num_batches_tracked.item() == 1
    torch.testing.assert_close(model.norm.running_mean, 0.1 * hidden.mean(dim=0))
    torch.testing.assert_close(model.norm.running_var, 0.9 + 0.1 * hidden.var(dim=0))
    task(model, toys.batch(dtype=torch.float32))()
    assert model.norm.num_batches_tracked.item() == 2


def test_batch_norm_eval_survives_model_train(toys: ModuleType) -> None:
    model = Modes()
    guide = Guidance(model, build(toys, model), batch_norm="eval", every=2)
    for _ in range(4):
        model.train()
        guide.step(task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))
    model.train()
    guide.step(task(model, toys.batch(dtype=torch.float32)), None)
    assert len(model.seen) == 7
    assert not any(seen["norm"] for seen in model.seen)
    assert sum(seen["drop"] for seen in model.seen) == 5  # the task batches still have their dropout
    assert model.norm.num_batches_tracked.item() == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(8))


# -- every, resuming, accumulation ----------------------------------------------------------------------------------


def test_every_draws_only_when_due_and_reuses_the_last_correction(toys: ModuleType) -> None:
    model, sampler = toys.mlp(), toys.Sampler()
    guide = Guidance(model, build(toys, model, "adam"), every=3, alpha=0.2)
    due, norms = [], []
    for i in range(7):
        due.append(guide.due)
        report = guide.step(task(model, toys.batch(seed=i)), sampler)
        norms.append(report.correction_norm.item())
        assert report.scale.item() * report.task_norm.item() == pytest.approx(0.2 * norms[-1])
    assert due == [True, False, False, True, False, False, True]
    assert sampler.drawn == 3
    assert norms[0] == norms[1] == norms[2] != norms[3] == norms[4] == norms[5] != norms[6]
    assert guide.iteration == 7


@pytest.mark.parametrize("margin", [0.5, "0.5x"])
def test_resume_inside_a_cycle_is_exact(toys: ModuleType, margin: float | str) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, Guidance]:
        model = toys.mlp(dtype=torch.float32)
        optimizer = build(toys, model, "adam")
        return model, optimizer, Guidance(model, optimizer, every=4, margin=margin)

    def run(model: nn.Module, guide: Guidance, sampler: Any, start: int, stop: int) -> None:
        for i in range(start, stop):
            guide.step(task(model, toys.batch(seed=i, dtype=torch.float32)), sampler)

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
    guide = Guidance(model, build(toys, model), margin="0.5x")
    guide.step(task(model, toys.batch()), toys.pairs())
    copied = guide.state_dict()
    torch.save(copied, tmp_path / "guide.pt")
    state = torch.load(tmp_path / "guide.pt", weights_only=True)
    other = Guidance(model, build(toys, model), margin="0.5x")
    held = other.correction, other.margin
    other.load_state_dict(state)
    assert other.iteration == 1
    assert other.correction is held[0]
    assert held[0].norm.item() == guide.correction.norm.item() > 0
    assert held[1].item() == guide.margin.item() > 0
    guide.step(task(model, toys.batch()), toys.pairs())
    assert held[0].norm.item() != guide.correction.norm.item()
    for name, value in state.items():  # a state is a copy, not a window
        assert torch.equal(torch.as_tensor(copied[name]), torch.as_tensor(value)), name
    with pytest.raises(ValueError, match=r"not the state of a Guidance.*margin"):
        other.load_state_dict({k: v for k, v in state.items() if k != "margin"})


def test_accumulation_equals_the_step_on_the_whole_batch(toys: ModuleType) -> None:
    whole, parts = toys.mlp(), toys.mlp()
    optimizers = [build(toys, model, "adam") for model in (whole, parts)]
    guides = [Guidance(whole, optimizers[0], every=2), Guidance(parts, optimizers[1], every=2)]
    for i in range(5):
        x, y = toys.batch(12, seed=i)
        pairs = toys.pairs(seed=i)
        report = guides[0].step(task(whole, (x, y)), pairs)
        correction = guides[1].correct(pairs)
        for rows in torch.arange(12).chunk(3):
            (task(parts, (x[rows], y[rows]))() / 3).backward()
        other = guides[1].rescale(correction)
        optimizers[1].step()
        optimizers[1].zero_grad()
        torch.testing.assert_close(toys.bits(parts), toys.bits(whole), atol=1e-12, rtol=1e-12)
        assert math.isnan(other.task_loss.item())  # the caller knows it, the guide does not
        for name in ("alignment", "correction_norm", "task_norm", "scale", "violated"):
            assert getattr(other, name).item() == pytest.approx(getattr(report, name).item(), rel=1e-10)


def test_the_task_gradient_is_taken_at_the_corrected_parameters(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))
    pairs, seen = toys.pairs(), []

    def loss() -> Tensor:
        seen.append(toys.bits(model))
        return task(model, toys.batch())()

    before = toys.bits(model)
    twin = copy.deepcopy(model)
    guide.step(loss, pairs)
    Guidance(twin, build(toys, twin)).correct(pairs)
    assert torch.equal(seen[0], toys.bits(twin))
    assert not torch.equal(seen[0], before)


# -- precision ------------------------------------------------------------------------------------------------------


def scaled_run(toys: ModuleType, scaler: Any, iterations: int = 4, name: str = "adam") -> tuple[nn.Module, Guidance]:
    model = toys.mlp(dtype=torch.float32)
    guide = Guidance(model, build(toys, model, name), scaler=scaler, margin=0.5)
    for i in range(iterations):
        guide.step(task(model, toys.batch(seed=i, dtype=torch.float32)), toys.pairs(seed=i, dtype=torch.float32))
    return model, guide


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_grad_scaler_changes_nothing_while_all_is_finite(toys: ModuleType, name: str) -> None:
    plain, _ = scaled_run(toys, None, name=name)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaled, guide = scaled_run(toys, scaler, name=name)
    torch.testing.assert_close(toys.bits(scaled), toys.bits(plain), atol=1e-6, rtol=1e-5)
    off, _ = scaled_run(toys, torch.amp.GradScaler("cpu", enabled=False), name=name)
    assert torch.equal(toys.bits(off), toys.bits(plain))
    assert guide.skipped.item() == 0
    assert scaler.get_scale() == 2.0**10


def test_grad_scaler_with_accumulation(toys: ModuleType) -> None:
    plain, _ = scaled_run(toys, None, iterations=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model = toys.mlp(dtype=torch.float32)
    optimizer = build(toys, model, "adam")
    guide = Guidance(model, optimizer, scaler=scaler, margin=0.5)
    for i in range(2):
        x, y = toys.batch(seed=i, dtype=torch.float32)
        correction = guide.correct(toys.pairs(seed=i, dtype=torch.float32))
        for rows in torch.arange(12).chunk(2):
            scaler.scale(task(model, (x[rows], y[rows]))() / 2).backward()
        guide.rescale(correction)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.testing.assert_close(toys.bits(model), toys.bits(plain), atol=1e-5, rtol=1e-4)


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
    task(model, toys.batch(dtype=torch.float32))().mul(scaler.get_scale()).backward()
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
    guide.step(task(model, (x, y)), toys.pairs(dtype=torch.float32))
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
        guide = Guidance(model, build(toys, model), scaler=scaler, margin=0.5)
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
    guide = Guidance(model, build(toys, model), autocast=torch.bfloat16, margin=0.5)
    terms = guide.terms(pairs)
    assert terms.alignment.dtype == torch.float32
    assert terms.alignment.item() == pytest.approx(naive.alignment(*built).item(), rel=1e-5)
    assert terms.uniformity.item() == pytest.approx(
        naive.uniformity(*built, pairs.label.tolist(), 0.5).item(), rel=1e-5
    )
    full = Guidance(model, build(toys, model), margin=0.5).terms(pairs)
    assert terms.alignment.item() != full.alignment.item()
    assert terms.alignment.item() == pytest.approx(full.alignment.item(), rel=0.05)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_step_inside_autocast_sees_the_corrected_weights(toys: ModuleType, autocast: torch.dtype | None) -> None:
    """Autocast keeps its copies of the weights until its outermost context ends, past the corrective update."""
    inside, outside = toys.mlp(dtype=torch.float32), toys.mlp(dtype=torch.float32)
    guides = [
        Guidance(inside, build(toys, inside), autocast=autocast, margin=0.5),
        Guidance(outside, build(toys, outside), autocast=torch.bfloat16, margin=0.5),
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


# -- without pairs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
def test_step_without_pairs_is_plain_training_bit_for_bit(toys: ModuleType, name: str) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(5)
        model = Modes()
        return model, build(toys, model, name)

    plain, optimizer = fresh()
    for i in range(5):
        optimizer.zero_grad()
        task(plain, toys.batch(seed=i, dtype=torch.float32))().backward()
        optimizer.step()
    guided, its_optimizer = fresh()
    guide = Guidance(guided, its_optimizer)
    for i in range(5):
        report = guide.step(task(guided, toys.batch(seed=i, dtype=torch.float32)), None)
    assert torch.equal(toys.bits(guided), toys.bits(plain))
    assert torch.equal(toys.state_bits(its_optimizer), toys.state_bits(optimizer))
    numbers = report.numbers()
    assert numbers["scale"] == 1
    assert numbers["task_loss"] > 0
    assert math.isnan(numbers["alignment"])
    assert numbers["violated"] == numbers["clipped"] == numbers["floored"] == 0
    assert guide.iteration == 0
    guide.correct(toys.pairs(dtype=torch.float32))  # nothing is left behind that a correction would refuse


# -- the margin -----------------------------------------------------------------------------------------------------


def test_relative_margin_is_a_share_of_the_first_distances(toys: ModuleType, naive: ModuleType) -> None:
    model = toys.mlp(classes=3)
    slow = naive.Net(model[:-1], model[-1])
    one_class, mixed = toys.pairs(classes=3, seed=7), toys.pairs(classes=3, seed=8)
    one_class.label.zero_()
    guide = Guidance(model, build(toys, model), margin="0.5x")
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
    guide = Guidance(model, build(toys, model), margin="0.5x", scaler=torch.amp.GradScaler("cpu"))
    bad, good = toys.pairs(2, dtype=torch.float32), toys.pairs(2, dtype=torch.float32)
    bad.first[0] = 1e30  # its squares are infinite in single precision
    guide.correct(bad)
    assert math.isnan(guide.margin.item())
    guide.correct(good)
    assert 0 < guide.margin.item() < math.inf


def test_margin_zero_switches_uniformity_off(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model), margin=0)
    assert guide.correct(toys.pairs()).uniformity.item() == 0


def test_terms_carry_their_graph_and_move_nothing(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model), margin=0.5)
    before = toys.bits(model)
    terms = guide.terms(toys.pairs())
    assert torch.equal(toys.bits(model), before)
    (terms.alignment + terms.uniformity).backward()
    twin = toys.mlp()
    optimizer = build(toys, twin)
    gradients = watch_gradients(optimizer)
    Guidance(twin, optimizer, margin=0.5).correct(toys.pairs())
    for parameter, gradient in zip(list(model.parameters())[:-1], gradients[0], strict=False):
        torch.testing.assert_close(parameter.grad, gradient)
    assert model[-1].bias.grad is None


# -- collapse and NaN -----------------------------------------------------------------------------------------------


def collapsed_model(toys: ModuleType, how: str) -> nn.Sequential:
    model = toys.mlp(dtype=torch.float32)
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
    return model


@pytest.mark.parametrize(
    ("how", "margin"),
    [
        *(("dead features", 10.0), ("zero head", 10.0), ("one point", 10.0), ("a speck", 10.0)),
        *(("dead features", 0.0), ("zero head", 0.0), ("one point", 0.0)),  # no hinge to tell by: features lie flat
    ],
)
def test_collapse_is_told_after_its_patience(toys: ModuleType, how: str, margin: float) -> None:
    model = collapsed_model(toys, how)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=1e-7), margin=margin)
    for _ in range(COLLAPSE_PATIENCE - 1):
        guide.step(task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))
        guide.check()
    guide.step(task(model, toys.batch(dtype=torch.float32)), toys.pairs(dtype=torch.float32))
    with pytest.raises(CollapseError, match=r"for 20 corrections.*warm the learning rate up"):
        guide.check()


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
    model = toys.mlp()
    guide = Guidance(model, build(toys, model), margin=0.0)
    zero, different = torch.zeros((), dtype=torch.float64), ~torch.eye(4, dtype=torch.bool)
    for _ in range(COLLAPSE_PATIENCE):
        count_collapse(guide.watch.counters, _collapsed(zero, zero, different, torch.randn(8, 5), guide.margin))
    guide.check()


@pytest.mark.parametrize("margin", [0.1, 5.0, "0.5x", 0.0])
def test_healthy_training_is_left_alone(toys: ModuleType, margin: float | str) -> None:
    model = toys.mlp(dtype=torch.float32)
    guide = Guidance(model, build(toys, model, "adam"), margin=margin, tau=0.1)
    for i in range(3 * COLLAPSE_PATIENCE):
        guide.step(task(model, toys.batch(seed=i, dtype=torch.float32)), toys.pairs(seed=i, dtype=torch.float32))
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
        guide = Guidance(model, build(toys, model), every=2)
        for i in range(5):
            (x, y), pairs = toys.batch(seed=i), toys.pairs(seed=i)
            if i == 2:
                (pairs.second if where == "pairs" else x)[0, 0] = math.nan
            guide.step(task(model, (x, y)), pairs)
            if i < 2:
                guide.check()
        with pytest.raises(NonFiniteError, match=r"at iteration 3\. Likely causes: a NaN in the images"):
            guide.check()
        assert guide.skipped.item() >= 3


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, r"alpha=1\.0 is out of range: expected 0 <= alpha < 1"),
        ({"alpha": -0.1}, "alpha=-0.1 is out of range"),
        ({"alpha": math.nan}, "alpha=nan is out of range"),
        ({"tau": 1.5}, "tau=1.5 is out of range: expected 0 <= tau <= 1: it is a share of the pairs"),
        ({"tau": -0.5}, "tau=-0.5 is out of range"),
        ({"margin": -1.0}, "margin=-1.0 is out of range"),
        ({"margin": math.inf}, "margin=inf is out of range"),
        (
            {"margin": "half"},
            r"margin='half' is out of range: expected a number, at least 0, or a multiple such as \"0",
        ),
        ({"margin": "x"}, "margin='x' is out of range"),
        ({"margin": "-2x"}, "margin='-2x' is out of range"),
        ({"every": 0}, "every=0 is out of range: expected a whole number of iterations, at least 1"),
        ({"every": 1.5}, "every=1.5 is out of range"),
        ({"every": "often"}, "every='often' is out of range: expected a whole number of iterations, .*, or \"auto\""),
        ({"floor": 0.0}, "floor=0.0 is out of range: expected a positive number"),
        ({"floor": math.inf}, "floor=inf is out of range"),
        ({"batch_norm": "off"}, r"batch_norm='off' is out of range: expected \"train\" or \"eval\""),
        ({"distance": "cosine"}, "distance='cosine' is out of range"),
        ({"jitter": -1.0}, "jitter=-1.0 is out of range"),
    ],
)
def test_bad_options_are_refused(toys: ModuleType, options: dict[str, Any], message: str) -> None:
    model = toys.mlp()
    with pytest.raises(ValueError, match=message):
        Guidance(model, build(toys, model), **options)


def test_optimizers_that_need_a_closure_are_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.raises(ValueError, match=r"LBFGS\.step needs a closure.*e\.g\. Adam or SGD"):
        Guidance(model, torch.optim.LBFGS(model.parameters()))


def test_optimizers_that_know_no_closure_are_welcome(toys: ModuleType) -> None:
    class Plain(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            super().step()

    model = toys.mlp()
    before = toys.bits(model)
    Guidance(model, Plain(model.parameters(), lr=0.1)).correct(toys.pairs())
    assert not torch.equal(toys.bits(model), before)


def test_learning_rate_schedulers_may_wrap_the_optimizer(toys: ModuleType) -> None:
    model = toys.mlp()
    optimizer = build(toys, model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    guide = Guidance(model, optimizer)
    guide.step(task(model, toys.batch()), toys.pairs())
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_an_optimizer_without_trainable_parameters_is_refused(toys: ModuleType) -> None:
    model = toys.mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="the optimizer holds no trainable parameter"):
        Guidance(model, build(toys, model))


def test_every_times_alpha_is_warned_about(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.warns(UserWarning, match=r"every \* alpha = 2 is not below 1"):
        Guidance(model, build(toys, model), alpha=0.5, every=4)
    with pytest.warns(UserWarning, match="is not below 1"):
        Guidance(model, build(toys, model), alpha=0.5, every=2)
    Guidance(model, build(toys, model), alpha=0.49, every=2)
    Guidance(model, build(toys, model), alpha=0.99)


def test_accumulated_gradients_are_refused_by_correct(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))
    task(model, toys.batch())().backward()
    before = toys.bits(model)
    with pytest.raises(RuntimeError, match=r"gradients are already accumulated: correct before the first backward"):
        guide.correct(toys.pairs())
    assert torch.equal(toys.bits(model), before)
    assert guide.iteration == 0


def test_a_task_loss_that_runs_backward_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))

    def closure() -> Tensor:
        loss = task(model, toys.batch())()
        loss.backward()
        return loss

    for pairs in (toys.pairs(), None):
        with pytest.raises(RuntimeError, match="task_loss must only return the loss; it ran backward itself"):
            guide.step(closure, pairs)


def test_a_task_loss_that_is_a_tensor_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))
    with pytest.raises(TypeError, match=r"got Tensor: it has to run after the correction\. Write lambda: criterion"):
        guide.step(task(model, toys.batch())(), toys.pairs())  # type: ignore[arg-type]
    assert guide.iteration == 0


def test_a_task_loss_without_a_graph_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))
    with pytest.raises(RuntimeError, match="a loss without a graph"):
        guide.step(lambda: task(model, toys.batch())().detach(), toys.pairs())


def test_rescale_without_gradients_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))
    correction = guide.correct(toys.pairs())
    with pytest.raises(RuntimeError, match="no task gradient to rescale: run backward between correct and rescale"):
        guide.rescale(correction)


def test_detached_features_are_refused(toys: ModuleType, naive: ModuleType) -> None:
    class Detached(naive.Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.extractor(x).detach())

    body = toys.mlp()
    model = Detached(body[:-1], body[-1])
    with pytest.raises(RuntimeError, match="reaches the head alone: its features arrive detached"):
        Guidance(model, build(toys, model)).correct(toys.pairs())
    # training the head alone, on purpose, is fine
    head_alone = Guidance(model, torch.optim.SGD(model.head.parameters(), lr=0.1))
    assert head_alone.correct(toys.pairs()).norm.item() > 0


def test_a_corrective_loss_that_reaches_nothing_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    stray = nn.Parameter(torch.zeros(1))
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match="reaches no trainable parameter: everything it touches is frozen"):
        Guidance(model, torch.optim.SGD([stray], lr=0.1)).correct(toys.pairs())
    other = toys.mlp()
    guide = Guidance(other, torch.optim.SGD([stray], lr=0.1))
    with pytest.raises(RuntimeError, match="reaches no parameter of the optimizer: give it the model's own"):
        guide.correct(toys.pairs())


def test_pairs_are_validated() -> None:
    images, label = torch.zeros(3, 2, 4, 4), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must have one shape, got first \(3, 2, 4, 4\) and second \(2, 2, 4, 4\)"):
        Pairs(images, images[:2], label)
    with pytest.raises(ValueError, match=r"expected one label a pair, shape \(3,\), got \(2,\)"):
        Pairs(images, images, label[:2])
    with pytest.raises(ValueError, match=r"pair labels must be integers, got torch\.float32; use label\.long\(\)"):
        Pairs(images, images, label.float())
    with pytest.raises(ValueError, match=r"got torch\.bool"):
        Pairs(images, images, label.bool())
    with pytest.raises(ValueError, match="needs at least one pair, got none"):
        Pairs(images[:0], images[:0], label[:0])
    pairs = Pairs(images, images, label.to(torch.int32))
    assert len(pairs) == 3
    assert pairs.to("meta").first.device.type == "meta"


# -- what comes back ------------------------------------------------------------------------------------------------


def test_report_numbers(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model), margin=0.5)
    report = guide.step(task(model, toys.batch()), toys.pairs())
    numbers = report.numbers()
    assert list(numbers) == [
        *("task_loss", "alignment", "uniformity", "disagreement", "correction_norm", "task_norm", "scale"),
        *("violated", "clipped", "floored"),
    ]
    assert all(type(value) is float for value in numbers.values())
    assert all(field.ndim == 0 and not field.requires_grad for field in report)
    assert numbers == {name: float(getattr(report, name)) for name in numbers}
    again = guide.step(task(model, toys.batch()), toys.pairs())
    assert report.numbers() == numbers  # a report is not overwritten by the next step
    assert again.correction_norm.item() != report.correction_norm.item()


def test_correction_is_overwritten_in_place(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model), margin=0.5)
    first = guide.correct(toys.pairs())
    values, norm = first.values, first.norm.item()
    second = guide.correct(toys.pairs(seed=9))
    assert second is first
    assert second.values is values
    assert first.norm.item() != norm


def test_gradients_are_gone_after_a_step(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, build(toys, model))
    for pairs in (toys.pairs(), None):
        guide.step(task(model, toys.batch()), pairs)
        assert all(p.grad is None for p in model.parameters())


def test_compiled_model_is_guided_like_the_bare_one(toys: ModuleType) -> None:
    bare, inner = toys.mlp(), toys.mlp()
    compiled = torch.compile(inner, backend="eager")
    guides = [Guidance(model, build(toys, model, "adam"), margin=0.5) for model in (bare, compiled)]
    try:
        for i in range(3):
            for model, guide in zip((bare, compiled), guides, strict=True):
                guide.step(task(model, toys.batch(seed=i)), toys.pairs(seed=i))
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(toys.bits(inner), toys.bits(bare), atol=1e-12, rtol=1e-12)
