"""The search for settings: trials over a method's space, judged without the test images, best one written down.

    plan = make_plan(RunConfig(data="colored_mnist", method="ipg", seed=100), vary=["learning_rate", "epochs"])
    found = search(plan, Path("searches/mnist"))
    found.config                     # of the best trial; also in searches/mnist/best.toml

One process talks to Optuna and hands out trials, to itself or to worker processes; several such processes, also on
several machines, may be at one search. Trials are run as those of a study are: a row each, taken up again after a kill.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from ipg.config import RunConfig
from ipg.experiments.attempt import Ended, Job, RunTrial
from ipg.experiments.runner import ending, place, terminable, until
from ipg.experiments.search.objective import Objective, choose_objective, readable, split_of
from ipg.experiments.search.plan import Plan, Sampler
from ipg.experiments.search.postgres import speaking_clearly
from ipg.experiments.search.result import Found
from ipg.experiments.search.space import configure, ends, gather_space, warn_of_pace
from ipg.experiments.search.storage import JOURNAL, begun, open_storage
from ipg.experiments.search.study import Ledger
from ipg.experiments.search.trial import SearchTrial, run_search_trial, trial_splits
from ipg.experiments.search.view import SearchView
from ipg.experiments.store import Store, read_rows
from ipg.methods.space import Range
from ipg.training.device import resolve_device
from ipg.training.materials import gather
from ipg.training.readiness import get_ready
from ipg.training.start import as_started
from ipg.words import number_of

__all__ = ["BEST", "FIRST_SEED", "Found", "Plan", "make_plan", "search"]

FIRST_SEED = 100
"""Seeds below are those of reported results, which a search must not have seen."""
BEST = "best.toml"
MOST_FAILURES = 3
"""So many failed trials in a row end the search: what is wrong is not the settings."""
GO_ON = "; what is done is kept, and the same command goes on when the database is there again"
PATIENCE = 60
"""Seconds to wait for the processes of a killed command to let go of their trials."""


def make_plan(
    base: RunConfig,
    *,
    name: str | None = None,
    vary: Sequence[str] = (),
    given: Sequence[str] = (),
    objective: str = "auto",
    trials: int = 100,
    sampler: Sampler = "tpe",
    prune: bool = False,
) -> Plan:
    """A search over `base`, checked against its data before anything is trained.

    Args:
        base: what trials have in common; its seed is that of the sampler and of every trial.
        name: what the search is called; DATA-METHOD where not given.
        vary: settings to try beside those of the method's own space, as `ipg search --vary` takes them.
        given: settings that are not to be tried.
        objective: search, worst_group, pairs, or auto for the first of them that the data allow for.
        trials: how many.
        sampler: tpe or random.
        prune: whether to give up trials that are behind.
    """
    if base.seed < FIRST_SEED:
        raise ValueError(
            f"seed {base.seed} may be among those that results are reported on; a search takes one from {FIRST_SEED} on"
        )
    if trials < 1:
        raise ValueError(f"{trials} trials are asked for; expected at least 1")
    if sampler not in get_args(Sampler):
        raise ValueError(f"there is no sampler {sampler!r}; there are {', '.join(get_args(Sampler))}")
    resolve_device(base.device)  # or every trial would fail
    base = as_started(base)
    space = gather_space(base, vary, given)
    if prune and "epochs" in space:
        raise ValueError("--prune compares trials epoch by epoch: leave epochs out of --vary")
    warn_of_pace(base, space)
    materials = gather(base, table=readable(base))
    chosen = choose_objective(materials.table, objective, held_out=materials.held_out is not None)
    _check_fit(base, space, chosen)
    return Plan(name or f"{base.data}-{base.method}", base, space, chosen, trials, sampler, prune)


def _check_fit(base: RunConfig, space: Mapping[str, Range], objective: Objective) -> None:
    """What a trial would say before its first step, where no names and neither ends of the ranges fit these data."""
    tried = {name: _telling(ends(range_)) for name, range_ in space.items()}
    refused: list[Exception] = []
    for number in range(max(map(len, tried.values()))):
        config = configure(base, {name: values[min(number, len(values) - 1)] for name, values in tried.items()})
        try:
            table = readable(config)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=UserWarning)  # trials give theirs
                get_ready(config, table, trial_splits(table, split_of(objective)))
        except (ValueError, ImportError, OSError) as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def _telling(values: Sequence[Any]) -> Sequence[Any]:
    """All names, such as those of networks, and of numbers the first and the last."""
    return values if any(isinstance(value, str) for value in values) else (values[0], values[-1])


def search(
    plan: Plan,
    folder: Path,
    *,
    storage: str | None = None,
    workers: int | None = None,
    run: RunTrial = run_search_trial,
    console: Console | None = None,
    limit: float | None = None,
    resume: bool = False,
) -> Found:
    """Run the trials of `plan` that are not done yet, and write the best configuration to `best.toml`.

    Args:
        plan: what to search for.
        folder: of rows, trials under way and results.
        storage: address of a PostgreSQL database for several machines; a file in `folder` where not given.
        workers: processes; a GPU each, or half the cores, where not given. One alone is this process itself.
        run: runs a trial; to be found by its name where there are several processes.
        console: where to say how it goes.
        limit: seconds after which trials under way are saved and the rest is left; in the main thread alone.
        resume: go on with a search that was begun, and begin none.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; trials under way are saved and the message says how to go on.
        ValueError: the database cannot be used, three trials in a row have failed, or there is nothing to go on with.
    """
    if resume and storage is None and not (folder / JOURNAL).exists():
        raise ValueError(f"--resume: there is no search in {folder} to go on with; leave --resume out to begin one")
    opened, holds = open_storage(storage, folder, plan.name)
    with closing(holds), speaking_clearly(storage, GO_ON):
        if resume and plan.name not in begun(opened):
            raise ValueError(
                f"--resume: there is no search called {plan.name} to go on with; leave --resume out to begin one"
            )
        ledger = Ledger(plan, opened, holds)
        console, over = console or Console(), threading.Event()
        try:
            _work_off(ledger, folder, workers, run, console, limit, over)
        except KeyboardInterrupt:
            found = _write(ledger, folder)
            stands = f"{found.done} of {number_of(plan.trials, 'trial')} are done"
            if over.is_set():
                console.print(f"{plan.name}: the time is over, {stands}", highlight=False)
                return found
            raise KeyboardInterrupt(f"stopped, {stands}; run the same command again to go on") from None
        return _write(ledger, folder)


def _write(ledger: Ledger, folder: Path) -> Found:
    found = Found(ledger.plan, ledger.tried(), ledger.importances())
    _keep(found, folder)
    return found


def _keep(found: Found, folder: Path) -> None:
    """Write down the best so far, after every trial: whatever ends the search, the file tells of all that are done."""
    if found.best is not None:
        found.write(folder / BEST)


def _work_off(
    ledger: Ledger,
    folder: Path,
    workers: int | None,
    run: RunTrial,
    console: Console,
    limit: float | None,
    over: threading.Event,
) -> None:
    """Have trials run until none are left for this process."""
    plan = ledger.plan
    before = Found(plan, ledger.tried(), {})
    console.print(f"{plan.name}: {number_of(plan.trials, 'trial')}, {before.done} done", highlight=False)
    if before.done >= plan.trials:
        return
    store = Store(folder)
    store.tidy()
    stores = {plan.name: store}
    job = Job(stores, split_of(plan.objective), run)
    view = SearchView(console, stores, before)
    with (
        view,
        place(job, view, view.missing, plan.base.device, workers, None) as where,
        terminable(),
        ending(limit, over),
    ):
        failures, waited = 0, 0
        while waited < PATIENCE:
            taken: dict[str, SearchTrial] = {}
            busy: set[int] = set()
            for ended in until(over, where.run(_hand_out(ledger, taken, busy))):
                trial = taken[ended.key]
                view.keep_up(Found(plan, ledger.tried(), {}))
                view.ended(trial, _settle(ledger, store, trial, ended, busy))
                _keep(Found(plan, ledger.tried(), {}), folder)
                failures = failures + 1 if ended.state == "failed" else 0
                if failures == MOST_FAILURES:
                    raise ValueError(f"{failures} trials in a row have failed, the last: {ended.error}")
            if not taken:
                return
            if len(busy) == len(taken):
                waited += 1
                time.sleep(1.0)


def _hand_out(ledger: Ledger, taken: dict[str, SearchTrial], busy: set[int]) -> Iterator[SearchTrial]:
    """Trials one by one, each drawn when there is somebody to run it, with all that is known by then."""
    while (trial := ledger.take(busy)) is not None:
        taken[trial.key] = trial
        yield trial


def _settle(ledger: Ledger, store: Store, trial: SearchTrial, ended: Ended, busy: set[int]) -> Ended:
    """Keep what became of a trial; the same with its row, where it was done before this command began."""
    if ended.state == "elsewhere":  # a process of a killed command is still saving it
        busy.add(trial.number)
        ledger.leave(trial)
    elif ended.state == "failed":
        ledger.fail(trial, ended.error or "")
    else:
        row = ended.row or next(row for row in read_rows(store.rows) if row.get("key") == trial.key)
        ledger.tell(trial, row)
        return replace(ended, row=row)
    return ended
