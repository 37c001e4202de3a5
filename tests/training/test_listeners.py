"""Who is told how a run goes, when, and in which order."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ipg.config import RunConfig
from ipg.training import loop
from ipg.training.listeners import Listener, TensorBoard
from ipg.training.loop import train
from ipg.training.materials import Materials

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


class Diary(Listener):
    """Notes everything it is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        self.entries.append(("started", (config, step, total)))

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        self.entries.append(("progress", (step, dict(values))))

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.entries.append(("epoch", dict(row)))

    def finished(self, result: Mapping[str, Any]) -> None:
        self.entries.append(("finished", dict(result)))

    def told(self, kind: str) -> list[Any]:
        return [what for name, what in self.entries if name == kind]


def test_listeners_are_told_in_order(settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    config = settings("ipg", epochs=2)
    first, second = Diary(), Diary()
    outcome = train(config, materials(config), listeners=[first, second])
    assert first.entries == second.entries
    one_epoch = ["progress"] * 5 + ["epoch"]  # after each of 4 iterations, and once more before the evaluation
    assert [kind for kind, _ in first.entries] == ["started", *one_epoch * 2, "finished"]
    assert first.told("started") == [(config.suited().with_changes(precision="fp32", engine="eager"), 0, 8)]
    assert [step for step, _ in first.told("progress")] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert first.told("epoch") == list(outcome.rows)
    assert first.told("finished") == [outcome.result]


def test_progress_has_the_means_of_the_epoch_and_the_rate(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    config = settings("ipg", epochs=2, schedule="constant", learning_rate=0.01)
    diary = Diary()
    outcome = train(config, materials(config), listeners=[diary])
    values = [values for _, values in diary.told("progress")]
    assert all(value["learning_rate"] == 0.01 for value in values)
    assert all(math.isfinite(number) for value in values for number in value.values())
    names = {"task_loss", "alignment", "uniformity", "disagreement", "correction_norm", "scale", "violated"}
    assert names < set(values[0])
    for epoch, last in enumerate([4, 9]):
        assert outcome.rows[epoch]["train"] == {k: v for k, v in values[last].items() if k != "learning_rate"}


def test_a_look_is_not_taken_at_every_iteration(settings: Make, materials: Gather) -> None:
    """Looking waits for the device: with its usual rhythm nobody looks inside so short an epoch."""
    diary = Diary()
    config = settings(epochs=1, batch=60)
    train(config, materials(config), listeners=[diary])
    assert [step for step, _ in diary.told("progress")][-1] == 2
    assert len(diary.told("progress")) <= 3


def test_the_plain_listener_does_nothing(settings: Make, materials: Gather) -> None:
    config = settings(epochs=1)
    told, untold = (train(config, materials(config), listeners=given).model for given in ([Listener()], []))
    assert all(torch.equal(one, two) for one, two in zip(told.parameters(), untold.parameters(), strict=True))


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def test_tensorboard_gets_every_number(settings: Make, materials: Gather, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "run"
    config = settings(epochs=2)
    listener = TensorBoard(folder / "tensorboard")
    assert not folder.exists()  # or the run would find its folder taken
    outcome = train(config, materials(config), folder=folder, listeners=[listener])
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for name, value in [
        ("train/task_loss", lambda row: row["train"]["task_loss"]),
        ("test/average", lambda row: row["test"]["average"]),
        ("test/groups/top, red/accuracy", lambda row: row["test"]["groups"]["top, red"]["accuracy"]),
        ("validation/worst_group", lambda row: row["validation"]["worst_group"]),
        ("pair_disagreement", lambda row: row["pair_disagreement"]),
    ]:
        # TensorBoard puts an underscore in the place of what it does not like in a name
        tag = next(tag for tag in events.Tags()["scalars"] if tag in (name, name.replace(", ", "__")))
        written = events.Scalars(tag)
        assert [entry.step for entry in written] == [4, 8]
        assert [entry.value for entry in written] == pytest.approx([value(row) for row in outcome.rows])


def test_tensorboard_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install 'invariance-pair-guidance\[tensorboard\]'"):
        TensorBoard(tmp_path)
