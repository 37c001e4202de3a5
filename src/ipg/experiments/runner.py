"""Runs what is missing of a study, here, in worker processes or on a cluster, and keeps a row a trial.

Several runners may be at one study: each takes trials that nobody else has. A trial that failed is tried again by the
next runner, not by the one that saw it fail, unless it lacked memory beside others on its GPU: then it is run once more
when they are done. Trials of several studies can be run in one queue, by the same processes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console

from ipg.config import RunConfig
from ipg.data.remembering import remembering
from ipg.experiments.attempt import Ended, Job, RunTrial
from ipg.experiments.cluster import Cluster, Tasks
from ipg.experiments.mps import side_by_side
from ipg.experiments.progress import View
from ipg.experiments.store import Store
from ipg.experiments.study import Study, Trial
from ipg.experiments.trial import run_trial
from ipg.experiments.workers import Workers, sharing, suitable_workers
from ipg.methods import method_class
from ipg.training.device import resolve_device
from ipg.training.engine import resolve
from ipg.training.interrupt import late_request
from ipg.words import number_of

__all__ = ["Tally", "ending", "place", "run_study", "terminable", "until", "workers_for"]


@dataclass(frozen=True)
class Tally:
    """How a study stands."""

    done: int
    failed: int
    elsewhere: int
    """Trials that another runner is at."""
    failures: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The keys of those that failed."""


def run_study(
    study: Study,
    results: Path | Mapping[str, Path],
    *,
    data_path: str | Mapping[str, str | None] | None = None,
    device: str = "auto",
    engine: str = "auto",
    workers: int | None = None,
    cluster: Cluster | None = None,
    limit: float | None = None,
    run: RunTrial = run_trial,
    console: Console | None = None,
) -> Tally:
    """Run the trials that have no row of the study's split in `results` yet.

    Args:
        study: what to run, in this order; its trials may be of several studies.
        results: folder of the rows and of trials under way; by study where there are several.
        data_path: where the data set's files are; by data set where there are several.
        device: auto, cpu, cuda or mps.
        engine: how iterations of trials that name none are carried out: auto, eager, captured, or compiled, as far as
            their methods can be.
        workers: processes; a GPU each, or half the cores, where not given. One alone is this process itself.
        cluster: where to run instead of on this machine.
        limit: seconds after which trials under way are saved and the rest is left; in the main thread alone.
        run: runs a trial; to be found by its name where there are several processes.
        console: where to say how it goes.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; trials under way are saved and the message says how to go on.
    """
    console = console or Console()
    stores = {name: Store(folder, study.metrics_split) for name, folder in _folders(study, results).items()}
    done = _done(study, stores)
    missing = [trial for trial in study.trials if trial.key not in done]
    before = len(study.trials) - len(missing)
    console.print(f"{study.name}: {number_of(len(study.trials), study.unit)}, {before} done", highlight=False)
    for store in stores.values():
        store.tidy()
    if not missing:
        return Tally(before, 0, 0)
    paths = data_path if isinstance(data_path, Mapping) else {trial.dataset: data_path for trial in missing}
    trials = [trial.on(device, data_path=paths.get(trial.dataset), engine=_able(trial, engine)) for trial in missing]
    if cluster is None:
        resolve(RunConfig(engine=engine), resolve_device(device), processes=1)  # or every trial would fail
    job = Job(stores, study.metrics_split, run)
    begun, over = time.monotonic(), threading.Event()
    with View(console, stores, name=study.name, missing=len(missing)) as view:
        queue = _Queue(view, over)
        try:
            with place(job, view, len(trials), device, workers, cluster) as where, terminable(), ending(limit, over):
                queue.work_off(where, trials, beside=where.job.sharing > 1)
            if queue.crowded:
                view.say(f"{number_of(len(queue.crowded), study.unit)} lacked memory beside others: now each alone")
                rest = None if limit is None else max(0.0, limit - (time.monotonic() - begun))
                whole = None if cluster is None else replace(cluster, gpus=1)
                alone = place(job, view, len(queue.crowded), device, None, whole)
                with alone as where, terminable(), ending(rest, over):
                    queue.work_off(where, queue.crowded, beside=False)
        except KeyboardInterrupt:
            if not over.is_set():
                stands = f"{len(_done(study, stores))} of {len(study.trials)} {study.unit}s are done"
                raise KeyboardInterrupt(f"stopped, {stands}; run the same command again to go on") from None
    tally = Tally(len(_done(study, stores)), view.failed, queue.elsewhere, frozenset(queue.failures))
    console.print(_summary(study, tally, over=over.is_set()), highlight=False, soft_wrap=True)
    return tally


def _folders(study: Study, results: Path | Mapping[str, Path]) -> Mapping[str, Path]:
    """Where rows go, by the study of a trial."""
    return results if isinstance(results, Mapping) else {trial.study: results for trial in study.trials}


def _done(study: Study, stores: Mapping[str, Store]) -> set[str]:
    """The keys of the trials that have a row."""
    rows = {name: store.done() for name, store in stores.items()}
    return {trial.key for trial in study.trials if trial.key in rows[trial.study]}


@contextmanager
def ending(seconds: float | None, over: threading.Event) -> Iterator[None]:
    """When so many seconds have passed, interrupt this process as SIGTERM does; `over` says that it was this."""
    if seconds is None:
        yield
        return

    def end() -> None:
        over.set()
        os.kill(os.getpid(), signal.SIGTERM)

    clock = threading.Timer(seconds, end)
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()
        clock.join()  # or its signal might come when nobody expects one


def until(over: threading.Event, ends: Iterable[Ended]) -> Iterator[Ended]:
    """How trials end, one by one; when the time is over, no other is asked for."""
    for ended in ends:
        yield ended
        if over.is_set():
            raise KeyboardInterrupt


def _able(trial: Trial, engine: str) -> str:
    """`engine`, or what suits a trial whose method cannot run by it."""
    return "auto" if engine == "compiled" and not method_class(trial.method).compiles else engine


class Place(Protocol):
    """Where trials are run, and by what job: it says how many share a GPU there."""

    job: Job

    def run(self, trials: Iterable[Trial]) -> Iterator[Ended]:
        """Have all trials attempted; each is reported once."""
        ...


class Here:
    """Trials in this process, one after the other: what was loaded and compiled for one serves the next."""

    def __init__(self, job: Job, view: View) -> None:
        self.job, self.view = job, view

    def run(self, trials: Iterable[Trial]) -> Iterator[Ended]:
        """Have all trials attempted; each is reported once."""
        with remembering():
            for trial in trials:
                self.view.started(trial)
                with late_request() as late:
                    ended = self.job.attempt(trial, partial(self.view.moved, trial.key))
                yield ended
                if late.made:
                    raise KeyboardInterrupt


@contextmanager
def place(
    job: Job, view: View, trials: int, device: str, workers: int | None, cluster: Cluster | None
) -> Iterator[Place]:
    """Where so many trials are run: in this process, in worker processes or on a cluster."""
    if cluster is not None:
        with Tasks(job, view, cluster, device=device) as tasks:
            yield tasks
        return
    count = workers_for(trials, device, workers)
    if count == 1:
        yield Here(job, view)
        return
    with side_by_side(count, device, view.say) as mps:
        shared = replace(job, sharing=sharing(count, device), mps=mps)
        with Workers(shared, view, count, device=device) as processes:
            yield processes


def workers_for(trials: int, device: str, asked: int | None) -> int:
    """How many processes work off so many trials."""
    if asked is not None and asked < 1:
        raise ValueError(f"{asked} workers are asked for; expected at least 1")
    return min(asked or suitable_workers(device), trials)


class _Queue:
    """What becomes of trials: how many another runner has, which failed, and which lacked memory beside others."""

    def __init__(self, view: View, over: threading.Event) -> None:
        self.view, self.over = view, over
        self.elsewhere = 0
        self.failures: set[str] = set()
        self.crowded: list[Trial] = []

    def work_off(self, where: Place, trials: Sequence[Trial], *, beside: bool) -> None:
        """Attempt all trials, and again those that others had, as long as it leads anywhere.

        Those that lack memory where they are `beside` others are put by.
        """
        while trials:
            by_key = {trial.key: trial for trial in trials}
            busy = []
            for ended in until(self.over, where.run(trials)):
                trial = by_key[ended.key]
                if beside and ended.lacked_memory:
                    self.view.lost(trial, "it lacked memory beside others; it comes again when they are done")
                    self.crowded.append(trial)
                    continue
                self.view.ended(trial, ended)
                if ended.state == "failed":
                    self.failures.add(ended.key)
                if ended.state == "elsewhere":
                    busy.append(trial)
            if len(busy) == len(trials):
                break
            trials = busy
        self.elsewhere += len(trials)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _summary(study: Study, tally: Tally, *, over: bool) -> str:
    parts = [f"{study.name}: {tally.done} of {len(study.trials)} {study.unit}s done"]
    if tally.failed:
        parts.append(f"{tally.failed} failed, tried again when the command is given again")
    if tally.elsewhere:
        parts.append(f"{tally.elsewhere} being run by another runner")
    if over and tally.done < len(study.trials):
        parts.append("the time is over, run the same command again to go on")
    return "; ".join(parts)
