"""A run that was stopped, at whatever iteration, ends with the bits of one that was not."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.training import loop
from ipg.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from ipg.training.interrupt import Interrupted
from ipg.training.listeners import Listener
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]

KINDS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "ipg": {"method": "ipg", "every": 3, "jitter": 0.1, "margin": "2x"},  # jitter draws from the global generator
    "auto": {"method": "ipg", "every": "auto", "tau": 0.3, "learning_rate": 0.05},  # k rises, and falls again
    "joint": {"method": "joint", "every": 2},
    "joint sum": {"method": "joint", "options": {"order": "sum"}, "every": 2, "optimizer": "sgd"},
    "adamw": {"method": "ipg", "optimizer": "adamw", "weight_decay": 0.1, "warmup": 5},
    "groupdro": {"method": "groupdro", "options": {"step_size": 1}},
    "pair_contrastive": {"method": "pair_contrastive"},
    "dair": {"method": "dair"},  # colours are drawn from the global generator
    "lff": {"method": "lff"},  # a second network, its optimizer, a memory of losses
    "best epoch": {"method": "erm", "selection": "worst_group", "learning_rate": 0.05},
    "best line": {"method": "ipg", "selection": "worst_group", "decision": "worst_group"},
}
STEPS = 12  # 3 epochs of 4


class Stops:
    """Sends the process a signal while the given iterations of a run are made, counted from its beginning."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: set[int] = set()
        self.number = signal.SIGINT
        self.step = 0
        real = EagerStep.step

        def step(this: EagerStep, rows: Tensor) -> None:
            real(this, rows)
            self.step += 1
            if self.step in self.at:
                signal.raise_signal(self.number)

        monkeypatch.setattr(EagerStep, "step", step)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Stops:
    return Stops(monkeypatch)


def bits(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()])


def assert_same(one: Outcome, other: Outcome) -> None:
    """The same weights, rows and results, but for the time it took."""
    assert torch.equal(bits(one.model), bits(other.model))

    def timeless(values: Any) -> Any:
        return {name: value for name, value in values.items() if name not in ("seconds", "date")}

    assert [timeless(row) for row in one.rows] == [timeless(row) for row in other.rows]
    assert timeless(one.result) == timeless(other.result)


def until_done(config: RunConfig, materials: Gather, folder: Path) -> tuple[Outcome, int]:
    """Run again and again; also the number of times it was stopped."""
    interruptions = 0
    while True:
        try:
            return train(config, materials(config), folder=folder), interruptions
        except Interrupted:
            interruptions += 1


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_at_any_iteration(kind: str, settings: Make, materials: Gather, tmp_path: Path, stops: Stops) -> None:
    config = settings(**KINDS[kind])
    expected = train(config, materials(config))
    assert stops.step == STEPS
    for step in range(1, STEPS):
        stops.step, stops.at = 0, {step}
        folder = tmp_path / str(step)
        with pytest.raises(Interrupted, match=f"stopped after {step} of 12 iterations"):
            train(config, materials(config), folder=folder)
        outcome, interruptions = until_done(config, materials, folder)
        assert stops.step == STEPS  # no iteration is made twice
        assert interruptions == 0
        assert_same(outcome, expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["erm", "ipg", "joint"])
def test_stopped_at_every_iteration(
    kind: str, number: signal.Signals, settings: Make, materials: Gather, tmp_path: Path, stops: Stops
) -> None:
    config = settings(**KINDS[kind])
    expected = train(config, materials(config))
    stops.step, stops.at, stops.number = 0, set(range(1, STEPS + 1)), number
    outcome, interruptions = until_done(config, materials, tmp_path)
    assert interruptions == STEPS - 1  # at the last there is nothing left to stop
    assert_same(outcome, expected)


def test_epochs_of_one_iteration_can_be_stopped(
    settings: Make, materials: Gather, tmp_path: Path, stops: Stops
) -> None:
    config = settings(batch=120, epochs=5)
    expected = train(config, materials(config))
    stops.step, stops.at = 0, {1, 3}
    outcome, interruptions = until_done(config, materials, tmp_path)
    assert interruptions == 2
    assert_same(outcome, expected)


def test_a_second_signal_does_not_wait(settings: Make, materials: Gather, tmp_path: Path, stops: Stops) -> None:
    config = settings("ipg")
    expected = train(config, materials(config))
    stops.step, stops.at = 0, {6}

    class Impatient(Listener):
        def epoch(self, row: Any) -> None:
            if row["epoch"] == 1:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        train(config, materials(config), folder=tmp_path, listeners=[Impatient()])
    assert not isinstance(caught.value, Interrupted)
    stops.at = set()
    assert_same(train(config, materials(config), folder=tmp_path), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_failure_after_an_epoch(
    kind: str, epoch: int, settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens may fail; what was saved before is there."""
    monkeypatch.setattr(loop, "SAVE_SHARE", math.inf)

    class Failing(Listener):
        def epoch(self, row: Any) -> None:
            if row["epoch"] == epoch:
                raise OSError("the terminal is gone")

    config = settings(**KINDS[kind])
    expected = train(config, materials(config))
    with pytest.raises(OSError, match="the terminal is gone"):
        train(config, materials(config), folder=tmp_path, listeners=[Failing()])
    assert load_checkpoint(tmp_path / "checkpoint.safetensors")["progress"]["step"] == 4 * epoch
    assert_same(train(config, materials(config), folder=tmp_path), expected)


@pytest.mark.parametrize("step", [1, 6, 11])
def test_a_failure_inside_an_epoch_goes_back_to_the_last_checkpoint(
    step: int, settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_SHARE", math.inf)
    config = settings("ipg", every=3)
    expected = train(config, materials(config))
    real, made = EagerStep.step, []

    def failing(this: EagerStep, rows: Tensor) -> None:
        made.append(1)
        if len(made) == step + 1:
            raise MemoryError
        real(this, rows)

    with monkeypatch.context() as patch:
        patch.setattr(EagerStep, "step", failing)
        with pytest.raises(MemoryError):
            train(config, materials(config), folder=tmp_path)
    started: list[int] = []

    class Watching(Listener):
        def started(self, config: RunConfig, *, step: int, total: int) -> None:
            started.append(step)

    assert_same(train(config, materials(config), folder=tmp_path, listeners=[Watching()]), expected)
    assert started == [step // 4 * 4]


def test_of_short_epochs_the_first_and_the_last_are_saved(
    settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: Stops
) -> None:
    """What epochs were worth is written after each; Ctrl-C at the end of one saves it."""
    monkeypatch.setattr(loop, "SAVE_SHARE", 1e-9)
    config = settings("ipg", every=3)
    expected = train(config, materials(config))
    found: list[tuple[int, int]] = []

    class Looking(Listener):
        def epoch(self, row: Any) -> None:
            state = load_checkpoint(tmp_path / "checkpoint.safetensors")["progress"]
            found.append((state["step"], len((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines())))

    assert_same(train(config, materials(config), folder=tmp_path, listeners=[Looking()]), expected)
    assert found == [(4, 1), (4, 2), (12, 3)]
    stops.step, stops.at = 0, {8}
    with pytest.raises(Interrupted, match="stopped after 8 of 12 iterations"):
        train(config, materials(config), folder=tmp_path / "stopped")
    assert load_checkpoint(tmp_path / "stopped" / "checkpoint.safetensors")["progress"]["step"] == 8
    stops.at = set()
    assert_same(train(config, materials(config), folder=tmp_path / "stopped"), expected)


def test_long_epochs_are_saved_inside(
    settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    config = settings("ipg", every=3)
    expected = train(config, materials(config))
    real, made = EagerStep.step, []

    def failing(this: EagerStep, rows: Tensor) -> None:
        made.append(1)
        if len(made) == 7:
            raise MemoryError
        real(this, rows)

    with monkeypatch.context() as patch:
        patch.setattr(EagerStep, "step", failing)
        with pytest.raises(MemoryError):
            train(config, materials(config), folder=tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.safetensors")["progress"]["step"] == 6
    assert_same(train(config, materials(config), folder=tmp_path), expected)


def test_a_network_in_another_memory_layout(settings: Make, materials: Gather, tmp_path: Path, stops: Stops) -> None:
    """Fused optimizers read their state by the strides of the parameters; a checkpoint is contiguous."""
    config = settings("ipg", every=3)

    def turned(config: RunConfig) -> Materials:
        made = materials(config)
        made.model.to(memory_format=torch.channels_last)
        return made

    expected = train(config, turned(config))
    stops.step, stops.at = 0, {5}
    outcome, interruptions = until_done(config, turned, tmp_path)
    assert interruptions == 1
    assert_same(outcome, expected)


def test_seconds_add_up(settings: Make, materials: Gather, tmp_path: Path, stops: Stops) -> None:
    config = settings()
    stops.at = {5}
    with pytest.raises(Interrupted):
        train(config, materials(config), folder=tmp_path)
    before = load_checkpoint(tmp_path / "checkpoint.safetensors")["progress"]["seconds"]
    outcome = train(config, materials(config), folder=tmp_path)
    assert 0 < before < outcome.result["seconds"]
    seconds = [row["seconds"] for row in outcome.rows]
    assert seconds == sorted(seconds)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process, and every stage, prepares its step for 7 seconds."""
    real = loop.Training.__init__

    def assembled(run: loop.Training, *given: Any) -> None:
        real(run, *given)
        run.step.preparing = 7.0

    monkeypatch.setattr(loop.Training, "__init__", assembled)


@pytest.mark.usefixtures("prepared")
def test_seconds_of_preparing_add_up(settings: Make, materials: Gather, tmp_path: Path, stops: Stops) -> None:
    """As all seconds do, of which they are a part."""
    config = settings()
    stops.at = {5, 9}
    outcome, interruptions = until_done(config, materials, tmp_path)
    assert interruptions == 2
    assert outcome.result["preparing_seconds"] == 21.0


@pytest.mark.usefixtures("prepared")
def test_seconds_of_preparing_of_a_first_stage_count(
    settings: Make, materials: Gather, tmp_path: Path, stops: Stops
) -> None:
    config = settings("jtt")
    assert train(config, materials(config)).result["preparing_seconds"] == 14.0
    stops.step, stops.at = 0, {2, 6}  # the first stage has 4 iterations
    outcome, interruptions = until_done(config, materials, tmp_path)
    assert interruptions == 2
    assert outcome.result["preparing_seconds"] == 28.0


@pytest.mark.usefixtures("prepared")
def test_a_checkpoint_that_does_not_know_of_preparing(
    settings: Make, materials: Gather, tmp_path: Path, stops: Stops
) -> None:
    config = settings()
    stops.at = {5}
    with pytest.raises(Interrupted):
        train(config, materials(config), folder=tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    state = load_checkpoint(checkpoint)
    del state["progress"]["preparing_seconds"]
    save_checkpoint(checkpoint, state)
    assert train(config, materials(config), folder=tmp_path).result["preparing_seconds"] == 7.0


# -- runs that are done ----------------------------------------------------------------------------------------------


def test_a_finished_run_is_read_back_without_training(
    settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(**KINDS["best epoch"])
    expected = train(config, materials(config), folder=tmp_path)
    content = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(*arguments: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(EagerStep, "step", refuse)
    monkeypatch.setattr(loop.Training, "_end_epoch", refuse)
    outcome = train(config, materials(config), folder=tmp_path)
    assert_same(outcome, expected)
    assert outcome.result == expected.result  # the time it took included
    assert not outcome.model.training
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == content


def test_a_run_killed_between_its_last_checkpoint_and_its_end(
    settings: Make, materials: Gather, tmp_path: Path
) -> None:
    """Nothing is left to train: the rest is written, the last line of the metrics included."""
    config = settings(**KINDS["ipg"])
    expected = train(config, materials(config), folder=tmp_path)
    for name in ("done", "result.json", "model.safetensors"):
        (tmp_path / name).unlink()
    metrics = tmp_path / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]), encoding="utf-8")
    outcome = train(config, materials(config), folder=tmp_path)
    assert_same(outcome, expected)
    assert [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] == outcome.rows
    assert (tmp_path / "done").exists()


class Reads(Listener):
    """Reads the metrics of a run as it goes on."""

    def __init__(self, metrics: Path) -> None:
        self.metrics, self.found = metrics, ""

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        self.found = self.metrics.read_text(encoding="utf-8")


@pytest.mark.parametrize("left", ["", "[3]\n"])
def test_the_metrics_are_those_of_the_checkpoint_as_soon_as_a_run_goes_on(
    settings: Make, materials: Gather, tmp_path: Path, stops: Stops, left: str
) -> None:
    """A kill has come between the two, or a hand has altered them."""
    config = settings(**KINDS["ipg"])
    stops.at = {6}
    with pytest.raises(Interrupted):
        train(config, materials(config), folder=tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    before = metrics.read_text(encoding="utf-8")
    metrics.write_text(left, encoding="utf-8")
    stops.at, reader = set(), Reads(metrics)
    train(config, materials(config), folder=tmp_path, listeners=[reader])
    assert len(before.splitlines()) == 1
    assert reader.found == before


def test_a_cut_checkpoint_is_named(settings: Make, materials: Gather, tmp_path: Path, stops: Stops) -> None:
    config = settings()
    stops.at = {6}
    with pytest.raises(Interrupted):
        train(config, materials(config), folder=tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors is damaged .*; delete it to start again"):
        train(config, materials(config), folder=tmp_path)
    checkpoint.unlink()
    stops.at = set()
    expected = train(config, materials(config))
    assert_same(train(config, materials(config), folder=tmp_path), expected)


def test_without_a_folder_a_stop_is_an_end(settings: Make, materials: Gather, stops: Stops) -> None:
    config = settings()
    stops.at = {6}
    with pytest.raises(Interrupted, match="stopped after 6 of 12 iterations"):
        train(config, materials(config))
