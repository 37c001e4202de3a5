"""Just Train Twice: what the first stage gets wrong is repeated in the second."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import stop_at
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.methods import jtt
from ipg.methods.jtt import Jtt, JttOptions
from ipg.training import loop
from ipg.training.folder import FolderError
from ipg.training.interrupt import Interrupted
from ipg.training.listeners import Listener
from ipg.training.loop import train
from ipg.training.materials import gather


class Says(nn.Module):
    """Predicts what it was told, whatever the images."""

    def __init__(self, answers: Tensor) -> None:
        super().__init__()
        self.answers, self.place = answers, 0

    def forward(self, images: Tensor) -> Tensor:
        part = self.answers[self.place : self.place + len(images)]
        self.place += len(images)
        return torch.eye(2)[part]


@pytest.fixture
def table(make_table: Callable[..., ImageTable]) -> ImageTable:
    return make_table(train=40, validation=20, test=20)


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(method="jtt", epochs=2, batch=16, device="cpu", held_out_pairs=0, selection="last")


def state(model: nn.Module) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_errors_come_lambda_times_more(table: ImageTable) -> None:
    part = table.part("train")
    answers = part.label.clone()
    answers[[3, 11]] = 1 - answers[[3, 11]]
    rows = Jtt.learn(Says(answers), part, JttOptions(copies=5), autocast=None).rows
    assert rows is not None
    counts = torch.bincount(rows, minlength=len(part))
    assert counts[[3, 11]].tolist() == [6, 6]
    assert counts.sum().item() == len(part) + 10
    assert (counts >= 1).all()


def test_without_copies_it_is_plain_training(config: RunConfig, table: ImageTable) -> None:
    twice = config.with_changes(options={"copies": 0})
    erm = config.with_changes(method="erm")
    one, other = (train(each, gather(each, table=table)) for each in (twice, erm))
    assert same(state(one.model), state(other.model))


def test_copies_make_passes_longer_and_another_model(config: RunConfig, table: ImageTable) -> None:
    short = config.with_changes(learning_rate=1e-5)  # so that the first stage learns nothing
    one = train(short, gather(short, table=table))
    plain = short.with_changes(method="erm")
    other = train(plain, gather(plain, table=table))
    assert one.rows[-1]["step"] > other.rows[-1]["step"]
    assert not same(state(one.model), state(other.model))


def test_a_stop_in_either_stage_changes_nothing(config: RunConfig, table: ImageTable, tmp_path: Path) -> None:
    expected = state(train(config, gather(config, table=table)).model)
    for stage in ("erm", "jtt"):
        with stop_at(2, method=stage), pytest.raises(Interrupted):
            train(config, gather(config, table=table), folder=tmp_path / "run")
    outcome = train(config, gather(config, table=table), folder=tmp_path / "run")
    assert same(state(outcome.model), expected)
    assert (tmp_path / "run" / "first_stage" / "done").exists()
    again = train(config, gather(config, table=table), folder=tmp_path / "run")
    assert same(state(again.model), expected)


def test_a_run_goes_on_with_the_errors_that_it_had(
    config: RunConfig, table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predicted again, by another GPU say, a few images may come out otherwise."""
    expected = state(train(config, gather(config, table=table)).model)
    with stop_at(2, method="jtt"), pytest.raises(Interrupted):
        train(config, gather(config, table=table), folder=tmp_path / "run")
    real = jtt.predict

    def otherwise(*arguments: Any, **options: Any) -> Tensor:
        answers = real(*arguments, **options)
        answers[:5] = 1 - answers[:5]
        return answers

    monkeypatch.setattr(jtt, "predict", otherwise)
    assert not same(state(train(config, gather(config, table=table)).model), expected)
    outcome = train(config, gather(config, table=table), folder=tmp_path / "run")
    assert same(state(outcome.model), expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_at_the_end_of_the_first_stage_comes_before_the_second(
    number: signal.Signals,
    config: RunConfig,
    table: ImageTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = state(train(config, gather(config, table=table)).model)
    real: Callable[..., Any] = loop.Training._finish

    def late(self: loop.Training) -> Any:
        signal.raise_signal(number)
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "_finish", late)
        with pytest.raises(Interrupted, match="stopped after the first stage"):
            train(config, gather(config, table=table), folder=tmp_path / "run")
    assert (tmp_path / "run" / "first_stage" / "done").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    began: list[str] = []

    class Watching(Listener):
        def first_stage(self, *, step: int, total: int) -> None:
            began.append("first stage")

        def started(self, config: RunConfig, *, step: int, total: int) -> None:
            began.append(config.method)

    outcome = train(config, gather(config, table=table), folder=tmp_path / "run", listeners=[Watching()])
    assert began == ["jtt"]
    assert same(state(outcome.model), expected)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any iteration fail."""

    def refuse(*_: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(loop.Training, "_step", refuse)


def test_the_folder_of_another_run_is_refused_before_the_first_stage(
    config: RunConfig, table: ImageTable, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = config.with_changes(method="erm")
    train(plain, gather(plain, table=table), folder=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    request.getfixturevalue("untrained")
    with pytest.raises(FolderError, match="holds another run: method was 'erm' and is now 'jtt'"):
        train(config, gather(config, table=table), folder=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"selection": "pairs"}, "selection='pairs' needs held-out pairs and there are none"),
        ({"selection": "worst_group"}, "selection='worst_group' needs validation images and there are none"),
        ({"decision": "balanced"}, "decision='balanced' needs validation images and there are none"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_the_first_stage(
    config: RunConfig, make_table: Callable[..., ImageTable], tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    table = make_table(train=40, validation=20 if changes == {"selection": "pairs"} else 0, test=20)
    given = config.with_changes(**changes)
    with pytest.raises(ValueError, match=says):
        train(given, gather(given, table=table), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_folder_is_held_during_the_first_stage(config: RunConfig, table: ImageTable, tmp_path: Path) -> None:
    """Else another run might take it, and this one be refused when that is trained."""
    other, tried = config.with_changes(method="erm", seed=1), []

    class Meanwhile(Listener):
        def first_stage(self, *, step: int, total: int) -> None:
            with pytest.raises(FolderError, match="is in use by another process"):
                train(other, gather(other, table=table), folder=tmp_path)
            tried.append(step)

    train(config, gather(config, table=table), folder=tmp_path, listeners=[Meanwhile()])
    assert tried == [0]


def test_the_time_of_both_stages_counts(config: RunConfig, table: ImageTable, tmp_path: Path) -> None:
    begun = time.perf_counter()
    outcome = train(config, gather(config, table=table), folder=tmp_path / "run")
    first = json.loads((tmp_path / "run" / "first_stage" / "result.json").read_text(encoding="utf-8"))["seconds"]
    assert first > 0
    both, passed = first + outcome.rows[-1]["seconds"], time.perf_counter() - begun
    assert both - 0.002 < outcome.result["seconds"] < passed + 0.002


@pytest.mark.parametrize(("name", "value"), [("first_epochs", 0), ("copies", -1), ("copies", 1.5)])
def test_options_out_of_range(config: RunConfig, table: ImageTable, name: str, value: float) -> None:
    given = config.with_changes(options={name: value})
    with pytest.raises(ValueError, match=f"option {name}={value!r}: expected a whole number, at least"):
        train(given, gather(given, table=table))


@pytest.mark.parametrize(("epochs", "first", "expected"), [(5, 1, 60), (5, 2, 120), (2, 4, 300)])
def test_the_first_stage_warms_up_for_the_same_share(epochs: int, first: int, expected: int) -> None:
    given = RunConfig(method="jtt", epochs=epochs, warmup=300, options={"first_epochs": first})
    before = Jtt.first_stage(given)
    assert (before.epochs, before.warmup) == (first, expected)
