"""What the theory promises, measured: each claim where it holds, and its breaking where it does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.theory import descent_table, schematic, stability_table
from ipg.experiments.tables.formats import latex
from ipg.experiments.theory.descent import ALPHA, WAYS, Descent, Problems, descend, longest
from ipg.experiments.theory.schematic import run_schematic, task_loss_surface
from ipg.experiments.theory.stability import Stability, excursions, observe

pytestmark = pytest.mark.usefixtures("one_thread")
BY_NAME = {way.name: way for way in WAYS}


def test_plain_gradient_descent_never_rises() -> None:
    found = descend(BY_NAME["gradient descent"], 300, 60)
    assert (found.losses.diff(dim=1) < 0).all()
    assert (found.rising, found.longest_rise) == (0.0, 0)


def test_past_the_theorems_rate_it_does_rise() -> None:
    """The bound is not idle: at eight times the rate that it allows some problems climb."""
    assert descend(replace(BY_NAME["gradient descent"], share=8.0), 300, 20).rising > 0


def test_with_noise_single_losses_rise_and_their_mean_falls() -> None:
    found = descend(BY_NAME["SGD, falling rate"], 2000, 60)
    assert found.rising > 0.2
    assert found.rising_in_the_mean == 0.0


def test_momentum_lags_and_arrives() -> None:
    found = descend(BY_NAME["momentum 0.9"], 300, 200)
    assert found.longest_rise > 1
    assert float(found.mean[-1]) < 0.01


def test_the_two_updates_are_those_of_the_paper() -> None:
    """One step of one problem by hand: θ − η H θ, then a task step of α ‖g_C‖ towards the target."""
    problems = Problems(1)
    found = descend(BY_NAME["gradient descent"], 1, 1)
    hessian, theta, target = problems.hessian[0], problems.start[0], problems.target[0]
    rate = 0.5 * 2 * (1 - ALPHA) / (float(torch.linalg.eigvalsh(hessian)[-1]) * (1 + ALPHA) ** 2)
    corrective = hessian @ theta
    corrected = theta - rate * corrective
    task = corrected - target
    after = corrected - rate * ALPHA * corrective.norm() * task / task.norm()
    ratio = float((after @ hessian @ after) / (theta @ hessian @ theta))
    assert float(found.losses[0, 1]) == pytest.approx(ratio)


def test_runs_of_rises_are_counted() -> None:
    assert longest([False, True, True, False, True]) == 2
    assert longest([False]) == 0
    falls = Descent("by hand", torch.tensor([[1.0, 0.5, 0.6, 0.7, 0.2], [1.0, 0.9, 0.8, 0.7, 0.6]]))
    assert falls.rising == pytest.approx(2 / 8)
    assert falls.rising_in_the_mean == pytest.approx(1 / 4)  # 1, 0.7, 0.7, 0.7, 0.4 with equal counted as no fall
    assert falls.longest_rise == 2
    line = descent_table([falls]).lines[0]
    assert line == ("by hand", "4", "0.4000", "25.00 %", "25.00 %", "2")


@pytest.mark.parametrize(
    ("violated", "lengths"),
    [("vvmmvmvvv", [1, 3]), ("mmmm", []), ("vvvv", []), ("vm", []), ("mv", [1])],
)
def test_excursions_begin_after_the_condition_was_met(violated: str, lengths: list[int]) -> None:
    assert excursions(tuple(letter == "v" for letter in violated)) == lengths


def test_stability_is_counted_over_the_iterations_it_speaks_of() -> None:
    flags = {"v": True, "m": False}
    violated = tuple(flags[letter] for letter in "vvmmvmm")
    run = Stability(0.1, 1e-3, (0.0,) * 7, violated, (False,) * 3 + (True,) + (False,) * 3, (False,) * 7)
    (line,) = stability_table([run]).lines
    assert line == ("0.1", "0.001", "1", f"{300 / 7:.1f} %", "1.0", "1.0", "1", "25.0 %", "0.0 %")


def test_an_observed_run_obeys_its_threshold() -> None:
    run = observe(0.25, 1e-2, seed=0, steps=6)
    assert len(run.disagreement) == 6
    assert run.violated == tuple(share >= 0.25 for share in run.disagreement)
    assert not any(clipped and violated for clipped, violated in zip(run.clipped, run.violated, strict=True))


def test_the_schematic_is_violated_three_times_and_then_met() -> None:
    run = run_schematic(2 / 3, 0.25)
    assert [step.violated for step in run.steps] == [True, True, True, False, False, False]
    for step in run.steps:
        corrective, task = math.dist(step.before, step.corrected), math.dist(step.corrected, step.after)
        if step.violated:
            assert task == pytest.approx(2 / 3 * corrective)
        else:
            assert task <= 2 * corrective
    first, last = run.steps[0].before, run.steps[-1].after
    assert abs(last[0]) < 0.1 * abs(first[0])  # the shortcut's parameter is gone
    assert last[1] > first[1]  # and the cause's has grown
    assert all(one.after == other.before for one, other in zip(run.steps, run.steps[1:], strict=False))


def test_the_surface_is_the_task_loss() -> None:
    grid = task_loss_surface(torch.tensor([0.0, 1.0]), torch.tensor([0.0]))
    assert grid.shape == (1, 2)
    assert float(grid[0, 0]) == pytest.approx(math.log(2))  # without parameters all is chance
    assert float(grid[0, 1]) < math.log(2)  # the shortcut helps in training


def test_the_schematic_is_drawn_with_its_table() -> None:
    table, figures = schematic(load_reproduction("schematic"))
    assert [line[2] for line in table.lines] == ["violated"] * 3 + ["met"] * 3
    assert [line[5] for line in table.lines[:3]] == ["0.667"] * 3
    assert "task update, condition violated: 0.67" in figures["schematic"]
    record = table.records[0]
    assert (record["iteration"], record["condition"]) == (1, "violated")
    assert record["ratio"] == pytest.approx(2 / 3)
    assert record["commit"]


def test_a_share_above_zero_is_not_told_as_zero() -> None:
    """One iteration of 40,000."""
    losses = torch.linspace(1.0, 0.5, 201).repeat(200, 1)
    losses[0, 7] = losses[0, 6]
    table = descent_table([Descent("once", losses), Descent("never", losses[1:])])
    assert [line[3:5] for line in table.lines] == [("< 0.01 %", "0.00 %"), ("0.00 %", "0.00 %")]
    assert table.records[0]["rises"] == pytest.approx(1 / 40_000)
    tex = latex(table.head, table.lines, [], label="descent")
    assert r"$<$ 0.01 \%" in tex
    run = Stability(0.1, 1e-3, (0.0,) * 2001, (False,) * 2001, (True,) + (False,) * 2000, (False,) * 2001)
    assert stability_table([run]).lines[0][-2:] == ("< 0.1 %", "0.0 %")
