"""What people see of a search: the best so far, what is done, running, given up or failed, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ipg.experiments.progress import View
from ipg.experiments.search.plan import Tried
from ipg.experiments.search.result import Found, best_of
from ipg.experiments.search.trial import WORST, in_percent
from ipg.experiments.store import Store
from ipg.words import number_of

__all__ = ["SearchView"]


class SearchView(View):
    """Told of everything that happens in a search; what other processes do of it counts as done, too."""

    def __init__(self, console: Console, stores: Mapping[str, Store], before: Found) -> None:
        self.wrong = self.pruned = 0
        """Of the trials that were done here."""
        self.best, self._before = before.best, before.done
        super().__init__(console, stores, name=before.plan.name, missing=before.plan.trials - before.done)

    def keep_up(self, now: Found) -> None:
        """Take in what others have done by now."""
        others = now.done - self._before - self.done
        self.done, self._worked, self.best = self.done + others, self._worked + others, now.best

    @property
    def settled(self) -> int:
        """Those that are done: another takes the place of one that failed."""
        return self.done

    def _outcome(self, row: Mapping[str, Any]) -> str:
        """What a trial is worth."""
        tried = Tried(row["number"], row["state"], row["value"], {}, row)
        worth, took = in_percent(tried.value), f"in {row['seconds']:.1f} s"
        if tried.state == "wrong":
            self.wrong += 1
            return f"went wrong, counted as {100 * row['value']:g} %: {row['error']}"
        if tried.state == "pruned":
            self.pruned += 1
            return f"{worth} after {number_of(len(row['curve']), 'epoch')}, behind the median: given up {took}"
        best = best_of([tried] if self.best is None else [self.best, tried], by="value")
        is_best = best is tried and (tried.value or WORST) > WORST
        self.best = tried if is_best else self.best
        return f"{worth} {took}" + (", the best so far" if is_best else "")

    def _parts(self) -> list[str]:
        best = [] if self.best is None else [f"best {in_percent(self.best.value)} (trial {self.best.number})"]
        counts = {"given up": self.pruned, "went wrong": self.wrong, "failed": self.failed}
        told = [f"{count} {what}" for what, count in counts.items() if count]
        return [*best, f"{self.done} of {self.missing} done", f"{len(self._running)} running", *told]
