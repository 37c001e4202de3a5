"""Full-batch training: exact in pieces, the method's own updates, taken up again where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.experiments.ablations import gather_trial
from ipg.experiments.arms import same_run, went_wrong
from ipg.experiments.reproduce import dynamics
from ipg.experiments.reproduce.dynamics import FullBatch, run_dynamics
from ipg.experiments.reproduce.figures import figures_of
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.study import Trial
from ipg.guidance import CollapseError, Guidance, NonFiniteError
from ipg.training.materials import Materials

pytestmark = pytest.mark.usefixtures("one_thread", "bars")
CPU = torch.device("cpu")
FULL: dict[str, Any] = {"pair_batch": 8, "schedule": "constant", "restarts": 0}
"""What a run in full batch is, beside the defaults."""


@pytest.fixture
def full(trial: Callable[..., Trial]) -> Callable[..., Trial]:
    def make(**changes: Any) -> Trial:
        return trial("ipg", **{"epochs": 4, "learning_rate": 5e-3, "every": 1, "margin": 0.08, **FULL, **changes})

    return make


def drawn(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The figures of a small version with these rows."""
    reproduction = load_reproduction("dynamics", quick=True)
    return figures_of(reproduction, [Measured(reproduction.cells[0], tuple(rows))])


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_pieces_add_up_to_the_gradient_of_all_images(full: Callable[..., Trial]) -> None:
    """Against one backward pass over all images at once, with the weighted mean that torch computes."""
    config = full(batch=17).config  # the last of 8 pieces is smaller
    run = FullBatch(config, gather_trial(config), CPU)
    loss = run._accumulate()
    found = [parameter.grad.clone() for parameter in run.model.parameters() if parameter.grad is not None]
    run.optimizer.zero_grad()
    images, labels = run.table.images.float() / 255, run.table.label
    whole = F.cross_entropy(run.model(images), labels, weight=run.weight)
    whole.backward()
    torch.testing.assert_close(loss, whole.detach())
    for one, other in zip(found, run.model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-4, atol=1e-7)


def test_it_is_the_methods_step_on_all_images_and_all_pairs(full: Callable[..., Trial]) -> None:
    config = full(batch=1000, class_weighted=False).config
    run = FullBatch(config, gather_trial(config), CPU)
    other = gather_trial(config)
    model, table, pairs = other.model, other.table.part("train"), other.pairs
    assert pairs is not None
    guide = Guidance(model, torch.optim.Adam(model.parameters(), lr=5e-3), alpha=config.alpha, margin=0.08)
    images = table.images.float() / 255
    for _ in range(3):
        run.step()
        guide.step(lambda: F.cross_entropy(model(images), table.label), pairs.batch(slice(None)))
    torch.testing.assert_close(weights(run.model), weights(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("changes", [{"every": 3}, {"every": "auto"}, {"distance": "logits"}])
def test_corrections_come_as_often_and_compare_what_the_row_says(
    full: Callable[..., Trial], changes: dict[str, Any]
) -> None:
    config = full(batch=1000, class_weighted=False, **changes).config
    run, other = FullBatch(config, gather_trial(config), CPU), gather_trial(config)
    model, table, pairs = other.model, other.table.part("train"), other.pairs
    assert pairs is not None
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    guide = Guidance(model, optimizer, alpha=config.alpha, margin=0.08, **changes)
    images = table.images.float() / 255
    for _ in range(4):
        run.step()
        guide.step(lambda: F.cross_entropy(model(images), table.label), pairs.batch(slice(None)))
    torch.testing.assert_close(weights(run.model), weights(model), rtol=1e-4, atol=1e-6)
    assert (run_dynamics(full(**changes))["config"]).items() >= changes.items()


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd"}, {"schedule": "cosine"}, {"warmup": 3}, {"weight_decay": 0.1}, {"crop": 0.7},
        {"jitter": 0.1}, {"pair_batch": 4}, {"steps": 3}, {"precision": "bf16"},
    ],
)  # fmt: skip
def test_what_its_row_would_state_and_it_would_not_do_is_refused(
    full: Callable[..., Trial], changes: dict[str, Any]
) -> None:
    (said,) = (f"{name}={value!r}" for name, value in changes.items())
    with pytest.raises(ValueError, match=f"no run in full batch has {said}; expected method='ipg', optimizer='adam'"):
        run_dynamics(full(**changes))


def test_its_row_states_what_auto_came_to(full: Callable[..., Trial]) -> None:
    one = full(margin="auto", precision="auto", crop="auto", flip="auto")
    row = run_dynamics(one)
    states = {"margin": "0.85x", "precision": "fp32", "crop": 1.0, "flip": False}
    assert row["config"].items() >= states.items()
    assert same_run(row, one)
    assert row["curves"] == run_dynamics(full(**states))["curves"]


def test_auto_is_no_half_precision_where_that_is_what_it_comes_to(
    full: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamics, "resolve_precision", lambda name, device: "bf16" if name == "auto" else name)
    with pytest.raises(ValueError, match=r"has precision='bf16'; expected .*, precision='fp32' or 'tf32'$"):
        run_dynamics(full(precision="auto"))


def test_the_row_is_of_the_same_run_as_its_trial_by_whatever_engine_others_were_made(
    full: Callable[..., Trial],
) -> None:
    """Nothing of it is captured, though all other trials of the command may be."""
    one = full()
    row = run_dynamics(one.on("cpu", data_path=None, engine="captured"))
    assert row["config"]["engine"] == "eager"
    assert row["key"] == one.key
    assert same_run(row, one)


def test_a_run_that_was_stopped_goes_on(
    full: Callable[..., Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew: list[float] = []
    whole = run_dynamics(full(), tell=anew.append)
    assert anew == [0.0, 0.25, 0.5, 0.75, 1.0]  # one that begins above 0 is said to go on
    monkeypatch.setattr(dynamics, "SAVE_SECONDS", 0.0)

    def stop(share: float) -> None:
        if share >= 0.5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_dynamics(full(), folder=tmp_path, tell=stop)
    told: list[float] = []
    row = run_dynamics(full(), folder=tmp_path, tell=told.append)
    assert told == [0.5, 0.75, 1.0]
    assert row["curves"] == whole["curves"]
    assert row["metrics"]["average"] == whole["metrics"]["average"]
    assert [len(curve) for curve in row["curves"].values()] == [4, 4, 4]
    assert row["metrics"]["task_loss"] == min(row["curves"]["task_loss"])
    assert row["kind"] == "dynamics"


@pytest.mark.parametrize("error", [CollapseError, NonFiniteError])
def test_a_seed_that_breaks_off_has_a_row_with_the_curves_so_far(
    full: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    whole = run_dynamics(full())

    def check(guide: Guidance) -> None:
        if guide.iteration > 2:
            raise error("all is on one point")

    monkeypatch.setattr(Guidance, "check", check)
    row = run_dynamics(full())
    assert row["collapse"] == "all is on one point"
    assert row["curves"] == {name: curve[:2] for name, curve in whole["curves"].items()}
    assert row["metrics"]["task_loss"] == min(row["curves"]["task_loss"])
    assert 0 <= row["metrics"]["average"] <= 1
    assert went_wrong(row)
    assert "collapse" not in whole


def test_a_run_that_is_no_number_from_the_start_has_a_row(full: Callable[..., Trial]) -> None:
    row = run_dynamics(full(learning_rate=1e30))
    assert "NaN or infinite" in row["collapse"]
    json.dumps(row, allow_nan=False)


def test_networks_that_mix_images_are_refused(full: Callable[..., Trial]) -> None:
    config = full().config
    materials = gather_trial(config)
    mixing = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128), nn.Linear(128, 2))
    with pytest.raises(ValueError, match="BatchNorm"):
        FullBatch(config, Materials(materials.table, mixing, materials.pairs), CPU)
    with pytest.raises(ValueError, match="give pairs a number above 0"):
        FullBatch(config, Materials(materials.table, materials.model), CPU)


def test_the_figure_shows_the_least_task_loss_of_all_seeds(full: Callable[..., Trial]) -> None:
    rows = [run_dynamics(full(seed=seed)) for seed in (0, 1)]
    figures = drawn(rows)
    least = min(min(row["curves"]["task_loss"]) for row in rows)
    assert f"least of all seeds, {least:.3f}" in figures["dynamics-task_loss"]
    assert "mean ± standard deviation" in figures["dynamics-disagreement"]
    assert "Quick version on bars, 2 seeds" in figures["dynamics-disagreement"]
    assert set(figures) == {f"dynamics-{name}" for name in ("task_loss", "corrective_loss", "disagreement")}
    assert drawn([]) == {}
    (alone,) = {line for line in drawn(rows[:1])["dynamics-task_loss"].splitlines() if "1 seed" in line}
    assert "1 seeds" not in alone
    assert "mean ±" not in drawn(rows[:1])["dynamics-task_loss"]


def test_the_figure_shows_seeds_that_broke_off_beside_the_mean(full: Callable[..., Trial]) -> None:
    rows = [run_dynamics(full(seed=seed)) for seed in (0, 1, 2)]
    for row, epochs in ((rows[1], 2), (rows[2], 0)):
        row |= {"collapse": "…", "curves": {name: curve[:epochs] for name, curve in row["curves"].items()}}
    picture = drawn(rows)["dynamics-disagreement"]
    assert "3 seeds, 2 of them broken off" in picture
    assert "seed 1, broken off after 2 epochs" in picture
    assert "by epoch" in picture
    assert "by epoch" not in drawn(rows[1:])["dynamics-task_loss"]
    assert drawn(rows[2:]) == {}
