"""What people see of a search: the best so far, what is done, running, given up or failed, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ipg.experiments.attempt import Ended
from ipg.experiments.progress import View, duration
from ipg.experiments.search.plan import Tried
from ipg.experiments.search.trial import WORST, SearchTrial, in_percent
from ipg.experiments.store import Store
from ipg.experiments.study import Trial
from ipg.words import number_of

__all__ = ["SearchView"]


class SearchView(View):
    """Told of everything that happens in a search."""

    def __init__(
        self, console: Console, stores: Mapping[str, Store], *, name: str, missing: int, best: Tried | None
    ) -> None:
        self.wrong = self.pruned = 0
        """Of the trials that were done here."""
        self.best = None if best is None else (best.value or 0.0, best.number)
        super().__init__(console, stores, name=name, missing=missing)

    def ended(self, trial: Trial, ended: Ended) -> None:
        """An attempt has ended; one line, unless another runner has to do with it."""
        self._forget(trial.key, whole=ended.row is not None)
        if ended.state == "elsewhere" or not isinstance(trial, SearchTrial):
            return
        self.done += ended.state == "done"
        self.failed += ended.state == "failed"
        said = f"failed: {ended.error} (see {self.error_file(trial)})"
        if ended.row is not None:
            said = self._count(trial, ended.row)
        left = f", {duration(seconds)} left" if (seconds := self.seconds_left()) else ""
        self.say(f"[{self.done}/{self.missing}] {trial.title}: {said}{left}")
        self._refresh()

    def _count(self, trial: SearchTrial, row: dict[str, Any]) -> str:
        """Take in what a trial is worth; what to say of it."""
        value, took = row["value"], f"in {row['seconds']:.1f} s"
        worth = in_percent(value)
        if row["state"] == "wrong":
            self.wrong += 1
            return f"went wrong, counted as {100 * value:g} %: {row['error']}"
        if row["state"] == "pruned":
            self.pruned += 1
            return f"{worth} after {number_of(len(row['curve']), 'epoch')}, behind the median: given up {took}"
        is_best = value is not None and value > (WORST if self.best is None else self.best[0])
        if is_best:
            self.best = value, trial.number
        return f"{worth} {took}" + (", the best so far" if is_best else "")

    def _refresh(self) -> None:
        parts = [] if self.best is None else [f"best {in_percent(self.best[0])} (trial {self.best[1]})"]
        parts += [f"{self.done} of {self.missing} done", f"{len(self._running)} running"]
        counts = {"given up": self.pruned, "went wrong": self.wrong, "failed": self.failed}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        parts += [] if (seconds := self.seconds_left()) is None else [f"{duration(seconds)} left"]
        self._bars.update(self._bar, completed=self.done, text=", ".join(parts))
