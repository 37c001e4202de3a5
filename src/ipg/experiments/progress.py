"""What people see of a study: what is done, running and failed, and how long the rest will take.

On a terminal a bar for the study, or for several in one queue, and one for each trial that runs, with a line beneath on
how it stands; everywhere a line for each trial that ends, and in a log, where there are no bars, at most one a minute
on what runs, also where nothing moves on for long, as while a trial is compiled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ipg.experiments.attempt import Ended
from ipg.experiments.store import Store
from ipg.experiments.study import Trial

__all__ = ["View", "duration"]

MOST_SHOWN = 16
"""So many running trials have a bar."""
QUIET_SECONDS = 60.0
"""After so long without a line a log is told what runs."""
LOOK_SECONDS = 5.0
"""How often it is seen to that a log is told."""
MOST_TOLD = 4
"""Of running trials so many are named there."""


class View:
    """Told of everything that happens in a study."""

    def __init__(
        self,
        console: Console,
        stores: Mapping[str, Store],
        *,
        name: str,
        missing: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.stores, self.name, self.missing = console, stores, name, missing
        self.done = self.failed = 0
        """Of the trials that were missing."""
        self._running: dict[str, _Running] = {}
        self._worked = 0.0
        """Trials that were worked off here, in parts too."""
        self._clock, self._begun = clock, clock()
        self._said = self._begun
        self._bars = _Bars(self.told, console)
        self._bar = self._bars.add_task(name, total=missing, text="")
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> View:
        self._bars.start()
        if not self.console.is_terminal:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        self._bars.stop()

    def _watch(self) -> None:
        """Tell a log what runs where nothing else does."""
        while not self._over.wait(LOOK_SECONDS):
            if self._running:
                self._tell_what_runs()

    def started(self, trial: Trial) -> None:
        """A trial is given to somebody."""
        visible = len(self._running) < MOST_SHOWN
        bar = self._bars.add_task(f"  {self.title(trial)}", total=1.0, text="", visible=visible)
        self._running[trial.key] = _Running(trial, bar)
        self._refresh()

    def moved(self, key: str, share: float) -> None:
        """A running trial is so far; one line where it goes on with what was begun before."""
        if (running := self._running.get(key)) is None:
            return
        epochs = running.trial.config.epochs
        epoch = min(epochs, int(share * epochs) + 1)
        if running.start is None:
            running.start = share
            if share > 0:
                self.say(f"{self.title(running.trial)}: goes on in epoch {epoch} of {epochs}")
        running.share = share
        self._bars.update(running.bar, completed=share, text=f"epoch {epoch}/{epochs}")
        self._refresh()
        self._tell_what_runs()

    def lost(self, trial: Trial, why: str) -> None:
        """A trial has to be given to somebody else."""
        self._forget(trial.key)
        self.say(f"{self.title(trial)}: {why}")

    def ended(self, trial: Trial, ended: Ended) -> None:
        """An attempt has ended; one line, unless another runner has to do with it."""
        self._forget(trial.key, whole=ended.row is not None)
        if ended.state == "elsewhere":
            return
        self.done += ended.state == "done"
        self.failed += ended.state == "failed"
        said = f"failed: {ended.error} (see {self.error_file(trial)})" if ended.state == "failed" else ""
        if ended.row is not None:
            said = self._outcome(ended.row)
        left = f", {duration(seconds)} left" if (seconds := self.seconds_left()) else ""
        if said:
            self.say(f"[{self.settled}/{self.missing}] {self.title(trial)}: {said}{left}")
        self._refresh()

    def _outcome(self, row: Mapping[str, Any]) -> str:
        """What came of a trial, from its row."""
        wrong = f" ({row['collapse']})" if row.get("collapse") else ""
        return f"{_figures(row['metrics'])} in {row['seconds']:.1f} s{wrong}"

    @property
    def settled(self) -> int:
        """Of the trials that were missing, those that nothing more is done for."""
        return self.done + self.failed

    def title(self, trial: Trial) -> str:
        """The trial in words, its study and data before them where there are several studies."""
        return trial.title if len(self.stores) == 1 else f"{trial.study}, {trial.dataset}: {trial.title}"

    def error_file(self, trial: Trial) -> Path:
        """Where the traceback of a failed attempt is."""
        return self.stores[trial.study].error_file(trial.key)

    def seconds_left(self) -> float | None:
        """How long the rest will take at the pace so far; None where there is no telling yet."""
        at_work = list(self._running.values())
        worked = self._worked + sum(running.worked for running in at_work)
        left = self.missing - self.settled - sum(running.share for running in at_work)
        return None if worked <= 0 else (self._clock() - self._begun) * max(0.0, left) / worked

    def _forget(self, key: str, *, whole: bool = False) -> None:
        if (running := self._running.pop(key, None)) is not None:
            if whole:
                running.start, running.share = running.start or 0.0, 1.0
            self._worked += running.worked
            self._bars.remove_task(running.bar)

    def _tell_what_runs(self) -> None:
        """One line on how far the trials are that run, in a log that has been quiet for long."""
        if self.console.is_terminal or self._clock() - self._said < QUIET_SECONDS:
            return
        told = [f"{self.title(one.trial)} at {one.share:.0%}" for one in list(self._running.values())]
        more = [f"{len(told) - MOST_TOLD} more"] if len(told) > MOST_TOLD else []
        left = [f"{duration(seconds)} left"] if (seconds := self.seconds_left()) else []
        self.say("; ".join(["running: " + "; ".join(told[:MOST_TOLD]), *more, *left]))

    def _refresh(self) -> None:
        self._bars.update(self._bar, completed=self.settled)

    def told(self) -> str:
        """How the study stands, in a line."""
        left = [] if (seconds := self.seconds_left()) is None else [f"{duration(seconds)} left"]
        return ", ".join([*self._parts(), *left])

    def _parts(self) -> list[str]:
        """The same piece by piece, without the time."""
        return [f"{self.done} of {self.missing} done", f"{len(self._running)} running", f"{self.failed} failed"]

    def say(self, line: str) -> None:
        """Print a line, above the bars."""
        self._said = self._clock()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Bars(Progress):
    """Bars with a line beneath, which has all the width there is; where that is little, names are cut, and not bars."""

    def __init__(self, told: Callable[[], str], console: Console) -> None:
        self._told = told
        bar, text = BarColumn(16, table_column=Column(no_wrap=True)), TextColumn("{task.fields[text]}")
        super().__init__(_Names(), bar, text, console=console, transient=True, disable=not console.is_terminal)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars and the line."""
        yield from super().get_renderables()
        yield Text(self._told())


class _Names(ProgressColumn):
    """What runs."""

    def render(self, task: Task) -> _Name:
        """What a bar is of."""
        return _Name(task.description)


class _Name:
    """A text that is cut before its last part where there is no room: seeds tell trials apart."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        head, comma, tail = self.text.rpartition(", ")
        end = f"…{comma}{tail}"
        room = options.max_width - cell_len(end)
        cut = cell_len(self.text) > options.max_width and room > 0
        text = set_cell_size(head, room).rstrip(", ") + end if cut else self.text
        yield Text(text, no_wrap=True, overflow="ellipsis")


class _Running:
    """A trial that runs: where it was when it began here, and where it is."""

    def __init__(self, trial: Trial, bar: TaskID) -> None:
        self.trial, self.bar = trial, bar
        self.start: float | None = None
        self.share = 0.0

    @property
    def worked(self) -> float:
        return 0.0 if self.start is None else self.share - self.start


def _figures(metrics: Mapping[str, Any]) -> str:
    """The main figures of a row: `worst group 31.2 %, average 60.0 %`; those that there are."""
    shown = {name: metrics.get(key) for name, key in (("worst group", "worst_group"), ("average", "average"))}
    return ", ".join(f"{name} {100 * value:.1f} %" for name, value in shown.items() if value is not None) or "no figure"


def duration(seconds: float) -> str:
    """Seconds in words: 40 s, 12 min, 2 h 05 min."""
    minutes, whole = divmod(round(seconds), 60)
    if not minutes:
        return f"{whole} s"
    hours, minutes = divmod(minutes + (whole >= 30), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
