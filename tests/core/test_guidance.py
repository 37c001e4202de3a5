"""The step against Algorithm 1 as it is printed, and against numbers worked out by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.guidance import Guidance, Pairs, task_scale

EXACT = {"atol": 1e-10, "rtol": 1e-10}


# -- against the naive form -----------------------------------------------------------------------------------------


def assert_follows(
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
    make = optimizer if callable(optimizer) else lambda m: toys.build(m, optimizer)
    fast_optimizer, slow_optimizer = make(model), make(twin)
    guide = Guidance(model, fast_optimizer, every=every, **options)
    gradients = toys.watch_gradients(fast_optimizer)
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
        report = guide.step(toys.task(model, (x, y)), pairs).numbers()
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
    branches = assert_follows(naive, toys, optimizer=optimizer, classes=3, **options)
    assert branches & {"violated", "hinge"} == taken & {"violated", "hinge"}
    assert branches & taken


@pytest.mark.parametrize("classes", range(2, 8))
def test_every_number_of_classes_equals_the_naive_form(naive: ModuleType, toys: ModuleType, classes: int) -> None:
    assert "hinge" in assert_follows(naive, toys, classes=classes, optimizer="adam", tau=0.5, margin=1.0, iterations=4)


def test_both_branches_in_one_run(naive: ModuleType, toys: ModuleType) -> None:
    branches = assert_follows(naive, toys, classes=3, tau=0.5, alpha=0.9, margin=0.5, floor=1e-6, optimizer="adam")
    assert {"violated", "hinge"} < branches
    assert branches & {"clipped", "free"}


def test_unclipped_branch(naive: ModuleType, toys: ModuleType) -> None:
    assert "free" in assert_follows(naive, toys, tau=1.0, strict=True, floor=100.0, iterations=3)


def test_floor_acts_when_members_are_identical(naive: ModuleType, toys: ModuleType) -> None:
    # with identical members and no margin the correction is exactly zero, so only the floor lets the task through
    branches = assert_follows(naive, toys, shift=0.0, margin=0.0, tau=0.5, floor=0.02)
    assert branches == {"clipped", "floored"}


def test_zero_correction_stops_the_task_when_the_condition_is_violated(naive: ModuleType, toys: ModuleType) -> None:
    assert assert_follows(naive, toys, shift=0.0, margin=0.0, tau=0.0, iterations=3) == {"violated"}
    model = toys.mlp()
    before = toys.bits(model)
    guide = Guidance(model, toys.build(model), margin=0.0)
    report = guide.step(toys.task(model, toys.batch()), toys.pairs(shift=0.0)).numbers()
    assert report["task_norm"] > 0
    assert report["scale"] == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(toys.bits(model), before, atol=1e-12, rtol=0)


def test_alpha_zero_zeroes_the_task_gradient(naive: ModuleType, toys: ModuleType) -> None:
    assert_follows(naive, toys, alpha=0.0, margin=0.5, iterations=3)


def test_strict_differs_at_equality(naive: ModuleType, toys: ModuleType) -> None:
    """The first disagreement of the toy as τ: `≥` counts it as violated and `>` does not."""
    model = toys.mlp(classes=3)
    delta = Guidance(model, toys.build(model)).terms(toys.pairs(classes=3, seed=50)).disagreement.item()
    assert 0 < delta < 1
    assert "violated" in assert_follows(naive, toys, classes=3, tau=delta, iterations=1)
    assert "violated" not in assert_follows(naive, toys, classes=3, tau=delta, strict=True, iterations=1)


def test_several_parameter_groups(naive: ModuleType, toys: ModuleType) -> None:
    def groups(model: nn.Module) -> torch.optim.Optimizer:
        head = list(model[-1].parameters())
        rest = [p for layer in model[:-1] for p in layer.parameters()]
        options = [{"params": head, "lr": 0.05}, {"params": rest, "lr": 1e-2, "weight_decay": 0.2}]
        return torch.optim.AdamW(options, betas=(0.8, 0.95))

    assert_follows(naive, toys, optimizer=groups, margin=0.5, classes=4)


@pytest.mark.parametrize("every", [2, 3])
def test_sparse_corrections_equal_the_naive_form(naive: ModuleType, toys: ModuleType, every: int) -> None:
    branches = assert_follows(naive, toys, every=every, alpha=0.2, margin=0.5, optimizer="adam")
    assert "violated" in branches


def test_amsgrad_and_foreach_and_fused_equal_the_naive_form(naive: ModuleType, toys: ModuleType) -> None:
    for options in ({"foreach": True, "amsgrad": True}, {"fused": True}):
        assert_follows(
            naive,
            toys,
            optimizer=lambda m, options=options: torch.optim.Adam(m.parameters(), lr=1e-2, **options),
            margin=0.5,
            iterations=3,
        )


@pytest.mark.parametrize("distance", ["features", "logits"])
def test_other_distances_compare_what_they_say(naive: ModuleType, toys: ModuleType, distance: str) -> None:
    model, pairs = toys.mlp(classes=3), toys.pairs(classes=3)
    terms = Guidance(model, toys.build(model), distance=distance, margin=2.0).terms(pairs)
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
    terms = Guidance(model, toys.build(model), margin=1.0).terms(pairs)
    assert terms.alignment.item() == pytest.approx(naive.alignment(first, second).item(), abs=1e-12)
    assert terms.disagreement.item() == naive.disagreement(classes, others)
    assert 0 < terms.disagreement.item() < 1
    x, y = toys.batch()
    guide = Guidance(model, toys.build(model))
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


# -- what comes back ------------------------------------------------------------------------------------------------


def test_report_numbers(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), margin=0.5)
    report = guide.step(toys.task(model, toys.batch()), toys.pairs())
    numbers = report.numbers()
    assert list(numbers) == [
        *("task_loss", "alignment", "uniformity", "disagreement", "correction_norm", "task_norm", "scale"),
        *("violated", "clipped", "floored"),
    ]
    assert all(type(value) is float for value in numbers.values())
    assert all(field.ndim == 0 and not field.requires_grad for field in report)
    assert numbers == {name: float(getattr(report, name)) for name in numbers}
    again = guide.step(toys.task(model, toys.batch()), toys.pairs())
    assert report.numbers() == numbers  # a report is not overwritten by the next step
    assert again.correction_norm.item() != report.correction_norm.item()


def test_a_loss_of_one_entry_is_reported_as_a_number(toys: ModuleType) -> None:
    model, (x, y) = toys.mlp(), toys.batch()
    guide = Guidance(model, toys.build(model))
    loss = F.cross_entropy(model(x), y).item()
    plain = guide.step(lambda: F.cross_entropy(model(x), y).view(1), None)
    assert plain.numbers()["task_loss"] == pytest.approx(loss)
    report = guide.step(lambda: F.cross_entropy(model(x), y).view(1), toys.pairs())
    assert math.isfinite(report.numbers()["task_loss"])
    correction = guide.correct(toys.pairs())
    loss_with_graph = F.cross_entropy(model(x), y)
    loss_with_graph.backward()
    assert not guide.rescale(correction, loss_with_graph).task_loss.requires_grad


def test_correction_is_overwritten_in_place(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), margin=0.5)
    first = guide.correct(toys.pairs())
    values, norm = first.values, first.norm.item()
    second = guide.correct(toys.pairs(seed=9))
    assert second is first
    assert second.values is values
    assert first.norm.item() != norm


def test_gradients_are_gone_after_a_step(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    for pairs in (toys.pairs(), None):
        guide.step(toys.task(model, toys.batch()), pairs)
        assert all(p.grad is None for p in model.parameters())


def test_compiled_model_is_guided_like_the_bare_one(toys: ModuleType) -> None:
    bare, inner = toys.mlp(), toys.mlp()
    compiled = torch.compile(inner, backend="eager")
    guides = [Guidance(model, toys.build(model, "adam"), margin=0.5) for model in (bare, compiled)]
    try:
        for i in range(3):
            for model, guide in zip((bare, compiled), guides, strict=True):
                guide.step(toys.task(model, toys.batch(seed=i)), toys.pairs(seed=i))
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(toys.bits(inner), toys.bits(bare), atol=1e-12, rtol=1e-12)
