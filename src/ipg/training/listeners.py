"""Who is told how a run goes. JSON lines are always written by the loop itself; these are the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ipg.config import RunConfig

__all__ = ["FirstStage", "Listener", "TensorBoard"]


class Listener:
    """Told of a run's progress; does nothing unless a subclass does."""

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        """A run begins, or goes on, at `step` of `total` iterations."""

    def first_stage(self, *, step: int, total: int) -> None:
        """The run that comes before this one begins, or goes on."""

    def restarted(self, error: Exception, *, number: int, rate: float) -> None:
        """The run has collapsed and begins again, for the `number`-th time, now with this peak learning rate."""

    def failed(self, error: Exception, *, restarts: int, seconds: float) -> None:
        """The run has gone wrong and ends with `error`, after `seconds` in all; it had begun again `restarts` times."""

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """Every half second or so: means of this epoch so far, and the learning rate."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """An epoch has ended; `row` is its line in `metrics.jsonl`."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """The run is done."""


class FirstStage(Listener):
    """Told of the run that comes before another; whoever is told of that one hears when it begins."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        """Pass it on."""
        self._listener.first_stage(step=step, total=total)


class TensorBoard(Listener):
    """Writes the metrics of each epoch for TensorBoard (the extra `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "TensorBoard is not installed: pip install 'invariance-pair-guidance[tensorboard]'"
            ) from None
        self._open: Callable[[], Any] = partial(SummaryWriter, log_dir=str(folder))

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        """Open the file; not before, since a run takes no folder that holds something already."""
        self._writer = self._open()

    def restarted(self, error: Exception, *, number: int, rate: float) -> None:
        """Close the file: what follows is a run of its own, by the same name."""
        self._writer.close()

    def epoch(self, row: Mapping[str, Any]) -> None:
        """All numbers of the row, under names such as `test/worst_group`."""
        for name, value in _numbers(row):
            self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def finished(self, result: Mapping[str, Any]) -> None:
        """Close the file."""
        self._writer.close()


def _numbers(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found.append((f"{prefix}{name}", float(value)))
    return found
