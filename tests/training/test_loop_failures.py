"""Runs that go wrong: collapse, losses that are no number, and when a run is checked for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import stop_at
from torch import Tensor, nn
from training.loop_outcomes import METHODS, bits

from ipg.config import RunConfig
from ipg.guidance import CollapseError, NonFiniteError
from ipg.training import loop
from ipg.training.folder import read_json, read_jsonl
from ipg.training.interrupt import Interrupted, StopRequest
from ipg.training.listeners import Listener
from ipg.training.loop import train
from ipg.training.materials import Materials

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_that_is_not_a_number_ends_the_run(settings: Make, materials: Gather, method: str) -> None:
    config = settings(method, learning_rate=1e30, optimizer="sgd")
    with pytest.raises(NonFiniteError, match=r"NaN or infinite.*learning rate that is too high"):
        train(config, materials(config))


def test_a_collapse_ends_the_run_and_names_remedies(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=8, every=1, margin="0.1")
    with pytest.raises(CollapseError, match=r"the model has collapsed: .* Remedies: lower the learning rate"):
        train(config, collapsed(materials(config)))


def collapsed(materials: Materials) -> Materials:
    """With a head whose length is 0 in single precision: images on one point, and no gradient leads away from it."""
    nn.init.constant_(materials.model.head.weight, 1e-44)  # type: ignore[union-attr, arg-type]
    return materials


def test_a_short_run_that_collapses_does_not_end_as_if_all_were_well(
    settings: Make, materials: Gather, tmp_path: Path
) -> None:
    """Three corrections in all, where the watch waits for 20 while there is more to come."""
    config = settings("ipg", epochs=1, steps=3, every=1, margin="0.1", pair_batch=12)
    for _ in range(2):  # the same command again ends alike
        with pytest.raises(CollapseError, match="for 3 corrections all images of the pairs have stood on one point"):
            train(config, collapsed(materials(config)), folder=tmp_path)
        assert read_json(tmp_path / "failure.json")["kind"] == "CollapseError"
        assert not (tmp_path / "done").exists()


def test_a_good_epoch_that_was_kept_outlives_a_collapse(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=2, steps=3, every=1, margin="0.1", pair_batch=12, selection="worst_group")
    outcome = train(config, collapsed(materials(config)))  # all are alike, and of such the first is kept
    assert outcome.result["selected_epoch"] == 1


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After which iterations runs are checked."""
    found: list[int] = []
    check = loop.Training._check

    def noting(run: loop.Training) -> dict[str, float]:
        found.append(run.progress.step)
        return check(run)

    monkeypatch.setattr(loop.Training, "_check", noting)
    return found


@pytest.mark.parametrize("pause", [0.0, 1e9])
def test_when_a_run_is_checked_is_no_matter_of_the_clock(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, checks: list[int], pause: float
) -> None:
    """Each 64th iteration of the run, and the last of every epoch."""
    monkeypatch.setattr(loop, "LOOK_SECONDS", pause)
    config = settings(epochs=2, steps=100, model="linear")
    train(config, materials(config))
    assert checks == [64, 100, 128, 192, 200]


def test_a_resumed_run_is_checked_after_the_same_iterations(
    settings: Make, materials: Gather, checks: list[int], tmp_path: Path
) -> None:
    config = settings(epochs=2, steps=100, model="linear")
    for step in (30, 64, 150):
        with stop_at(step), pytest.raises(Interrupted):
            train(config, materials(config), folder=tmp_path)
    train(config, materials(config), folder=tmp_path)
    assert checks == [64, 100, 128, 192, 200]


@pytest.mark.parametrize("broken", ["collapse", "loss"])
def test_a_run_that_goes_wrong_ends_alike_at_any_speed(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, checks: list[int], broken: str
) -> None:
    """The network it leaves and what is said of it, however often somebody looks."""
    ends: list[tuple[str, Tensor]] = []
    for pause in (0.0, 1e9):
        monkeypatch.setattr(loop, "LOOK_SECONDS", pause)
        config = settings(
            "ipg" if broken == "collapse" else "erm", epochs=1, steps=100, every=1, pair_batch=12, restarts=0
        )
        given = materials(config)
        if broken == "collapse":
            collapsed(given)
        else:
            nn.init.constant_(given.model.head.bias, math.inf)  # type: ignore[union-attr, arg-type]
        with pytest.raises((CollapseError, NonFiniteError)) as caught:
            train(config, given)
        ends.append((str(caught.value), bits(given.model)))
    (said, left), (also_said, also_left) = ends
    assert checks == [64, 64]
    assert said == also_said
    assert torch.equal(left.nan_to_num(), also_left.nan_to_num())


def test_pairs_that_are_needed_and_missing_leave_no_folder(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("ipg", pairs=0)
    with pytest.raises(ValueError, match="method 'ipg' is guided by pairs and there are none"):
        train(config, materials(config), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there(settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = settings()
    with pytest.raises(ValueError, match="device 'cuda' is asked for and torch sees none here"):
        train(config.with_changes(device="cuda"), materials(config))


@pytest.fixture
def collapsing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have runs collapse in iteration 6 of so many attempts."""
    check = loop.Training._between_steps

    def until(attempts: int) -> None:
        def between(run: loop.Training, request: StopRequest) -> None:
            if run.progress.step == 6 and run.progress.restarts < attempts:
                raise CollapseError("collapsed")
            check(run, request)

        monkeypatch.setattr(loop.Training, "_between_steps", between)

    return until


class Told(Listener):
    """Keeps what is said of restarts."""

    def __init__(self) -> None:
        self.restarts: list[tuple[int, float]] = []
        self.failures: list[tuple[str, int]] = []

    def restarted(self, error: Exception, *, number: int, rate: float) -> None:
        self.restarts.append((number, rate))

    def failed(self, error: Exception, *, restarts: int, seconds: float) -> None:
        self.failures.append((str(error), restarts))


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_run_that_collapses_begins_again_as_one_of_half_the_rate(
    settings: Make, materials: Gather, collapsing: Callable[[int], None], attempts: int
) -> None:
    """To the bit, with all that a run can be made of: warm-up, a margin of the first distances, a pace of four."""
    common: dict[str, Any] = {"epochs": 3, "warmup": 5, "margin": "0.5x", "every": 4, "jitter": 0.1, "crop": 0.8}
    config, told = settings("ipg", learning_rate=1e-3, restarts=2, **common), Told()
    plain = settings("ipg", learning_rate=1e-3 / 2**attempts, restarts=0, **common)
    expected = train(plain, materials(plain))
    collapsing(attempts)
    found = train(config, materials(config), listeners=[told])
    assert torch.equal(bits(found.model), bits(expected.model))
    assert [row["learning_rate"] for row in found.rows] == [row["learning_rate"] for row in expected.rows]
    assert told.restarts == [(number, 1e-3 / 2**number) for number in range(1, attempts + 1)]
    assert found.result["restarted"] == attempts
    assert "restarted" not in expected.result
    assert found.result["config"]["learning_rate"] == 1e-3  # as asked
    assert found.result["seconds"] > 0


def test_what_was_prepared_for_attempts_that_collapsed_is_counted_too(
    settings: Make, materials: Gather, collapsing: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As their seconds are: what is left of these is time that any engine takes."""
    assemble = loop.Training.__init__

    def assembled(run: loop.Training, *given: Any) -> None:
        assemble(run, *given)
        run.step.preparing = 1.5

    monkeypatch.setattr(loop.Training, "__init__", assembled)
    collapsing(2)
    config = settings("ipg", restarts=2)
    assert train(config, materials(config)).result["preparing_seconds"] == 4.5


def test_a_run_begins_again_as_often_as_it_may(
    settings: Make, materials: Gather, collapsing: Callable[[int], None], tmp_path: Path
) -> None:
    config, told = settings("ipg", learning_rate=1e-3, restarts=2), Told()
    collapsing(3)
    said = "collapsed It had begun again 2 times, at last with a learning rate of 0.00025."
    with pytest.raises(CollapseError, match=re.escape(said)):
        train(config, materials(config), listeners=[told], folder=tmp_path)
    assert len(told.restarts) == 2
    assert told.failures == [(said, 2)]
    found = read_json(tmp_path / "failure.json")
    assert (found["kind"], found["restarts"]) == ("CollapseError", 2)


def test_a_run_that_begins_again_leaves_nothing_of_the_attempt_before_in_its_folder(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed before it saves anything, it goes on in the attempt it was in."""
    config = settings("ipg", epochs=3, restarts=1)
    between = loop.Training._between_steps

    def going(run: loop.Training, request: StopRequest) -> None:
        if run.progress.step == len(run.batches) + 2 and not run.progress.restarts:
            raise CollapseError("collapsed")
        if run.progress.step == 2 and run.progress.restarts:
            raise MemoryError  # as sudden as a kill
        between(run, request)

    monkeypatch.setattr(loop.Training, "_between_steps", going)
    with pytest.raises(MemoryError):
        train(config, materials(config), folder=tmp_path)
    assert read_jsonl(tmp_path / "metrics.jsonl", unfinished=True) == []
    monkeypatch.setattr(loop.Training, "_between_steps", between)
    assert train(config, materials(config), folder=tmp_path).result["restarted"] == 1


@pytest.mark.parametrize("stop", [(0, 4), (1, 4), (2, 3), (2, 7)])
def test_a_run_that_has_begun_again_is_taken_up_where_it_stopped(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop: tuple[int, int]
) -> None:
    """Stopped in any attempt, with the checkpoint of an earlier one there or not, it ends with the same bits."""
    config = settings("ipg", epochs=2, learning_rate=1e-3, restarts=2)
    between, stops = loop.Training._between_steps, [stop]

    def going(run: loop.Training, request: StopRequest) -> None:
        where = (run.progress.restarts, run.progress.step)
        if run.progress.step == 6 and run.progress.restarts < 2:
            run._save()  # which must not be taken for one of the attempt that follows
            raise CollapseError("collapsed")
        request.made = where in stops
        between(run, request)

    monkeypatch.setattr(loop.Training, "_between_steps", going)
    with pytest.raises(Interrupted):
        train(config, materials(config), folder=tmp_path / "stopped")
    stops.clear()
    expected = train(config, materials(config), folder=tmp_path / "whole")
    found = train(config, materials(config), folder=tmp_path / "stopped")
    assert torch.equal(bits(found.model), bits(expected.model))
    assert found.result["restarted"] == expected.result["restarted"] == 2
    assert not (tmp_path / "stopped" / "failure.json").exists()


def test_a_loss_that_is_no_number_is_not_begun_again(settings: Make, materials: Gather) -> None:
    """Where an image is the cause, it would end alike."""
    config, told = settings("ipg", learning_rate=1e30, optimizer="sgd", restarts=2), Told()
    with pytest.raises(NonFiniteError):
        train(config, materials(config), listeners=[told])
    assert told.restarts == []
