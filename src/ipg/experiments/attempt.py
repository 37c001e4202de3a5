"""An attempt at a trial: claim it, run it, keep its row or its traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ipg.experiments.store import Store

if TYPE_CHECKING:
    from ipg.experiments.study import Trial

__all__ = ["Ended", "Job", "RunTrial", "Tell", "in_a_line", "was_made_ready"]

_READY: set[str] = set()
"""The data that this process has trained on before, on a GPU."""

Tell = Callable[[float], None]
"""Is told which share of a trial is done."""


class RunTrial(Protocol):
    """Runs a trial and returns its row, as `ipg.experiments.trial.run_trial` does."""

    def __call__(self, trial: Trial, *, metrics_split: str, folder: Path | None, tell: Tell | None) -> dict[str, Any]:
        """The row; `folder` is None where the run is not to be kept."""
        ...


def was_made_ready(dataset: str) -> None:
    """This process has trained on the data."""
    _READY.add(dataset)


@dataclass(frozen=True)
class Ended:
    """How an attempt at a trial ended."""

    key: str
    state: Literal["done", "failed", "elsewhere"]
    """`elsewhere`: another runner has the trial."""
    row: dict[str, Any] | None = None
    """Of a trial that was done here."""
    error: str | None = None
    """One line on what went wrong."""

    @property
    def lacked_memory(self) -> bool:
        """Whether the device had not enough memory for the trial, which it may have when others are done."""
        return (self.error or "").startswith("OutOfMemoryError: ")


@dataclass(frozen=True)
class Job:
    """What is the same for all attempts of a queue."""

    stores: Mapping[str, Store]
    """By study."""
    metrics_split: str
    run: RunTrial
    sharing: int = 1
    """How many processes are at work on one GPU at once."""
    mps: bool = False
    """Whether side by side, by NVIDIA's Multi-Process Service, and not in turns."""

    def store_of(self, trial: Trial) -> Store:
        """Where a trial is kept."""
        return self.stores[trial.study]

    def attempt(self, trial: Trial, tell: Tell) -> Ended:
        """Run the trial here, unless it is done or another process is at it."""
        store = self.store_of(trial)
        with store.claim(trial.key) as mine:
            if not mine:
                return Ended(trial.key, "elsewhere")
            if trial.key in store.done():
                return Ended(trial.key, "done")
            folder = store.run_folder(trial.key)
            try:
                before = self._is_beside_others(trial)
                row = self.run(trial, metrics_split=self.metrics_split, folder=folder, tell=tell)
                others = before or self._is_beside_others(trial)
            except Exception as error:
                return self.failed(trial, traceback.format_exc(), in_a_line(error))
            store.finish(row := {**row, **self.company(others=others), **self._note_if_first(trial)})
        return Ended(trial.key, "done", row)

    def _is_beside_others(self, trial: Trial) -> bool:
        """Whether processes that are not ours are at work on the GPU, by its memory or by its driver."""
        from ipg.experiments.company import others_on
        from ipg.training.device import resolve_device
        from ipg.training.memory import memory_of_others

        if self.sharing > 1:
            return False
        device = resolve_device(trial.config.device)
        return memory_of_others(device) > 0 or others_on(device) > 0

    @staticmethod
    def _note_if_first(trial: Trial) -> dict[str, bool]:
        """What a row says if its trial was the first of its data on a GPU in this process, and remembers it."""
        from ipg.training.device import resolve_device

        if resolve_device(trial.config.device).type == "cpu" or trial.dataset in _READY:
            return {}
        was_made_ready(trial.dataset)
        return {"first": True}

    def company(self, *, others: bool) -> dict[str, Any]:
        """Who else was at work on the GPU, of whom the seconds of a row tell, too."""
        if self.sharing > 1:
            return {"sharing": self.sharing, **({"mps": True} if self.mps else {})}
        return {"others": True} if others else {}

    def failed(self, trial: Trial, text: str, line: str) -> Ended:
        """Keep the text of what went wrong with a trial that is held."""
        self.store_of(trial).fail(trial.key, text)
        return Ended(trial.key, "failed", error=line)


def in_a_line(error: Exception) -> str:
    """What went wrong, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())
