"""Whole iterations as CUDA graphs end where iterations as written end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training.capture_cases import CASES

from ipg.config import RunConfig
from ipg.training import assembly, loop
from ipg.training.capture import WARM_UP, WARM_UP_SMALLER, CapturedStep
from ipg.training.interrupt import Interrupted
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

compiling = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
"""Torch warns of itself and of its choices as it compiles, each version of other things."""

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


class Watched(CapturedStep):
    """Keeps itself and counts how often a graph was replayed in the place of a step."""

    made: list[Watched]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.written = 0
        type(self).made.append(self)

    def step(self, rows: Tensor) -> None:
        self.written += not torch.cuda.is_current_stream_capturing()
        super().step(rows)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Watched]]:
    """The runs of a test, as they were captured."""
    Watched.made = []
    monkeypatch.setattr(assembly, "CapturedStep", Watched)
    yield Watched
    Watched.made = []  # with their memory


def eagerly(config: RunConfig, materials: Materials, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "CapturedStep", EagerStep)
        return train(config, materials)


def assert_near(one: Outcome, other: Outcome) -> None:
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, other.model.state_dict()[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "graphs"),
    [
        ({"method": "erm"}, {False}),
        ({"method": "erm", "optimizer": "sgd"}, {False}),
        ({"method": "ipg", "every": 1}, {True}),
        ({"method": "ipg", "every": 2}, {True, False}),
        ({"method": "ipg", "every": 2, "margin": "0.1", "tau": 0.5}, {True, False}),
        ({"method": "ipg", "every": "auto", "tau": 1.0}, {True, False}),  # k rises to 8
        ({"method": "joint", "every": "auto", "options": {"order": "sum"}, "tau": 1.0}, {True, False}),
        ({"method": "joint", "every": 1}, {True}),
        ({"method": "joint", "every": 2, "options": {"order": "sum"}}, {True, False}),
    ],
)
def test_captured_iterations_end_where_written_ones_end(
    changes: dict[str, Any],
    graphs: set[bool],
    settings: Make,
    materials: Gather,
    captured: type[Watched],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings(
        **{"device": "cuda", "batch": 24, "epochs": 4, "deterministic": True, "precision": "fp32", **changes}
    )
    outcome = train(config, materials(config))  # 20 iterations
    (step,) = captured.made
    assert set(step._graphs) == {(24, due) for due in graphs}
    assert step.written == WARM_UP * len(graphs)  # all others came from graphs
    expected = eagerly(config, materials(config), monkeypatch)
    assert_near(outcome, expected)
    for row, other in zip(outcome.rows, expected.rows, strict=True):
        assert row["train"] == pytest.approx(other["train"], rel=1e-2, abs=1e-3)


@compiling
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "erm"},
        {"method": "erm", "optimizer": "sgd"},
        {"method": "ipg", "every": 1, "optimizer": "sgd"},
        {"method": "ipg", "every": 2, "margin": "0.1", "tau": 0.5, "optimizer": "sgd"},
        {"method": "joint", "every": 2, "options": {"order": "sum"}, "optimizer": "sgd"},
    ],
)
def test_compiled_iterations_end_where_written_ones_end(
    changes: dict[str, Any], settings: Make, materials: Gather, captured: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of three full batches, which are compiled and captured, and one of 24, which is captured as it is written.

    Compiled sums are rounded otherwise. With Adam, whose steps are as good as signs where gradients are small, a change
    of the first weights by a ten millionth makes a difference of 0.01 after 20 corrections; with SGD one of 1e-9.
    """
    config = settings(**{"device": "cuda", "epochs": 5, "precision": "fp32", **changes})
    outcome = train(config.with_changes(engine="compiled"), materials(config))  # 20 iterations
    (step,) = captured.made
    assert {length for length, _ in step._graphs} == {32, 24}
    assert_near(outcome, eagerly(config, materials(config), monkeypatch))
    assert outcome.result["config"]["engine"] == "compiled"
    assert 0 < outcome.result["preparing_seconds"] < outcome.result["seconds"]


@compiling
def test_compiled_iterations_in_half_precision_learn_the_same(settings: Make, materials: Gather) -> None:
    config = settings("ipg", device="cuda", epochs=5, every=2)
    losses = {}
    for precision, engine in (("fp32", "eager"), ("bf16", "compiled"), ("bf16", "captured")):
        outcome = train(config.with_changes(precision=precision, engine=engine), materials(config))
        losses[precision, engine] = outcome.rows[-1]["train"]["task_loss"]
    expected = losses.pop(("fp32", "eager"))
    assert list(losses.values()) == pytest.approx([expected, expected], rel=0.1)


@pytest.mark.parametrize(("changes", "kinds"), CASES)
def test_a_smaller_last_batch_is_captured_after_full_ones(
    changes: dict[str, Any],
    kinds: set[tuple[int, bool]],
    settings: Make,
    materials: Gather,
    captured: type[Watched],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epochs of three full batches and one of 24, the first of which comes before there is any graph."""
    config = settings(**{"device": "cuda", "epochs": 6, "deterministic": True, "precision": "fp32", **changes})
    outcome = train(config, materials(config))
    (step,) = captured.made
    assert set(step._graphs) == kinds
    assert len({graph.pool() for graph in step._graphs.values()}) == 1
    full = sum(length == 32 for length, _ in kinds)
    assert step.written == 1 + full * WARM_UP + (len(kinds) - full) * WARM_UP_SMALLER
    expected = eagerly(config, materials(config), monkeypatch)
    assert_near(outcome, expected)
    for row, other in zip(outcome.rows, expected.rows, strict=True):
        assert row["train"] == pytest.approx(other["train"], rel=1e-2, abs=1e-3)


def test_streamed_images_of_a_smaller_batch_reach_its_graph(
    settings: Make, materials: Gather, captured: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied to where full ones lie."""
    config = settings(device="cuda", epochs=6, deterministic=True, precision="fp32", resident=0.0)
    outcome = train(config, materials(config))
    (step,) = captured.made
    assert step.batches.streamed
    assert {length for length, _ in step._graphs} == {32, 24}
    assert_near(outcome, eagerly(config, materials(config), monkeypatch))


def test_the_rate_reaches_captured_iterations(settings: Make, materials: Gather, captured: type[Watched]) -> None:
    """With a rate that falls to nothing in the second half, the weights stand still there."""
    config = settings(device="cuda", batch=24, epochs=4, deterministic=True, precision="fp32")
    rates: list[float] = []

    def falling(step: int, total: int, config: RunConfig) -> float:
        rates.append(config.learning_rate if step < 10 else 0.0)
        return rates[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", falling)
        long = train(config, materials(config))
        short = train(config.with_changes(epochs=2), materials(config))
    assert 0.0 in rates
    for one, other in zip(long.model.parameters(), short.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


class Asking(nn.Module):
    """Asks the device for a number in the midst of a forward pass, of batches of one length or of all."""

    def __init__(self, inner: nn.Module, length: int | None = None) -> None:
        super().__init__()
        self.inner, self.length = inner, length
        self.head = inner.head

    def forward(self, images: Tensor) -> Tensor:
        if self.length in (None, len(images)) and images.sum().item() < 0:
            raise ValueError("images are not negative")
        logits: Tensor = self.inner(images)
        return logits


def test_a_network_that_cannot_be_captured_is_announced_and_trained(
    settings: Make, materials: Gather, captured: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ipg", device="cuda", batch=24, epochs=4, every=2, deterministic=True, precision="fp32")

    def asking() -> Materials:
        made = materials(config)
        return Materials(made.table, Asking(made.model), made.pairs, made.held_out)

    with pytest.warns(UserWarning, match="this step cannot be captured as a CUDA graph and runs as written: "):
        outcome = train(config, asking())
    (step,) = captured.made
    assert not step._graphs
    assert_near(outcome, eagerly(config, asking(), monkeypatch))


VIEWS = {"crop": 0.8, "flip": True}
"""Drawn on the device, whose generator a capture that fails must not take along."""


@pytest.mark.parametrize("views", [{}, VIEWS])
def test_a_smaller_batch_that_cannot_be_captured_leaves_full_ones_captured(
    views: dict[str, Any], settings: Make, materials: Gather, captured: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(device="cuda", epochs=6, deterministic=True, precision="fp32", **views)

    def asking() -> Materials:
        made = materials(config)
        return Materials(made.table, Asking(made.model, length=24), made.pairs, made.held_out)

    with pytest.warns(UserWarning, match="the step of a batch of 24 cannot be captured as a CUDA graph and runs as "):
        outcome = train(config, asking())
    (step,) = captured.made
    assert set(step._graphs) == {(32, False)}
    assert step.written == WARM_UP + 6  # and every small one
    assert len(outcome.rows) == 6
    if not views:  # which are drawn otherwise
        assert_near(outcome, eagerly(config, asking(), monkeypatch))


def test_views_are_drawn_where_a_network_cannot_be_captured(
    settings: Make, materials: Gather, captured: type[Watched]
) -> None:
    config = settings(device="cuda", batch=24, epochs=4, deterministic=True, precision="fp32", **VIEWS)
    made = materials(config)
    with pytest.warns(UserWarning, match="this step cannot be captured as a CUDA graph and runs as written: "):
        outcome = train(config, Materials(made.table, Asking(made.model), made.pairs, made.held_out))
    assert len(outcome.rows) == 4
    assert not captured.made[0]._graphs
    again = train(config, materials(config))  # and another run of the same process is captured
    assert len(again.rows) == 4
    assert set(captured.made[1]._graphs) == {(24, False)}


def test_an_optimizer_that_cannot_be_captured_is_announced_and_used(
    settings: Make, materials: Gather, captured: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(model: nn.Module, config: RunConfig, device: torch.device) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate)  # not capturable

    monkeypatch.setattr(assembly, "make_optimizer", plain)
    config = settings("ipg", device="cuda", batch=24, epochs=4, deterministic=True, precision="fp32")
    with pytest.warns(UserWarning, match="this step cannot be captured as a CUDA graph and runs as written: "):
        outcome = train(config, materials(config))
    assert_near(outcome, eagerly(config, materials(config), monkeypatch))


@pytest.mark.parametrize("batch", [24, 32])  # 32: the last of an epoch has 24
@pytest.mark.parametrize("every", [2, "auto"])
def test_a_resumed_run_ends_with_the_same_bits(
    every: Any, batch: int, settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ipg", device="cuda", batch=batch, epochs=5, every=every, deterministic=True, precision="fp32")
    expected = train(config, materials(config))
    real = CapturedStep.__call__
    made: list[int] = []

    def stopping(step: CapturedStep, rows: Tensor) -> None:
        real(step, rows)
        made.append(1)
        if len(made) == 13:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(CapturedStep, "__call__", stopping)
        patch.setattr(loop, "SAVE_SECONDS", 0.0)
        with pytest.raises(Interrupted):
            train(config, materials(config), folder=tmp_path)
    outcome = train(config, materials(config), folder=tmp_path)
    for name, value in outcome.model.state_dict().items():
        assert torch.equal(value, expected.model.state_dict()[name])


def test_runs_leave_no_memory_behind(settings: Make, materials: Gather) -> None:
    config = settings("ipg", device="cuda", batch=24, epochs=1, precision="fp32")
    held: list[int] = []
    for _ in range(4):
        train(config, materials(config))
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert held[1] == held[2] == held[3]
