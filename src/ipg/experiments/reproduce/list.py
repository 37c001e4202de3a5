"""How the reproductions stand: what each needs, how long it takes and on what, what is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ipg.experiments.arms import Row, run_of
from ipg.experiments.progress import duration
from ipg.experiments.reproduce.plan import (
    Reproduction,
    chosen_datasets,
    load_reproduction,
    names,
    shared,
    title_of,
)
from ipg.experiments.reproduce.queue import Asked, left_of, rows_of
from ipg.experiments.reproduce.rows import without_row
from ipg.experiments.reproduce.run import ALL, Place, asked_for
from ipg.experiments.reproduce.search import found_settings, papers_settings
from ipg.experiments.summary import Standing, Time, packaged_standing, standing_of, standings
from ipg.words import are, number_of, ranges

__all__ = ["listing", "named_listing", "needs", "takes"]


def listing(results: Path) -> Iterator[str]:
    """Four lines on each reproduction; without rows at hand, what the project's own say of the time it takes."""
    known = standings(results)
    at_hand = any(found.done for found in known.values())
    for name in names():
        yield from _lines(load_reproduction(name), known[name], None if at_hand else packaged_standing(name))
    yield "ipg reproduce NAME --quick runs a small version of any of them on embedded images."


def named_listing(given: Sequence[str], place: Place, *, quick: bool = False) -> Iterator[str]:
    """The same on those of these names, with what is missing of what is asked for, and what would be run of it.

    `all` is the list of all.

    Raises:
        ConfigError: what `reproduce_all` raises.
    """
    if ALL in given:
        for name in given:
            if name != ALL:
                load_reproduction(name)
        yield from listing(place.results)
        return
    asked = asked_for(given, place, quick=quick)
    rows = rows_of(asked)
    as_packaged = not quick and place.network is None and not any(rows.values())
    for one in asked:
        reproduction, own = one.reproduction, rows[one.results]
        there = packaged_standing(reproduction.name) if as_packaged else None
        yield from _lines(reproduction, standing_of(reproduction, own, one.results), there)
        for what in _searches(one, place) if reproduction.kind == "search" else _settings(one, own):
            yield f"  missing  {what}"
    if any(one.trials for one in asked):
        left = left_of(asked, rows, {} if quick else place.data_paths)
        count = len(left.entries)
        if count:
            yield f"Without --list {number_of(count, 'trial')} {are(count)} run."
        else:
            yield "Nothing of it can be run here." if left.obstacles else "Nothing is left to run."
        yield from left.told()


def _lines(reproduction: Reproduction, here: Standing, there: Standing | None) -> Iterator[str]:
    """What it is, whether its claim holds by the project's own rows, what it needs, how long it takes, what is done."""
    yield f"{reproduction.name}: {reproduction.title}" + (f" ({reproduction.paper})" if reproduction.paper else "")
    if reproduction.holds is not None:
        yield f"  holds  {reproduction.holds}. {reproduction.short}"
    yield f"  needs  {needs(reproduction)}"
    yield f"  takes  {takes(reproduction, there or here)}"
    yield f"  done   {_done(reproduction, here, there)}"


def _settings(one: Asked, rows: Sequence[Row]) -> Iterator[str]:
    """Every setting on every data set of which a trial is asked for and has no row."""
    asked = {run_of(trial) for trial in one.trials}
    missing = {run_of(trial) for trial in without_row(one.reproduction, rows, one.trials)}
    for cell in one.reproduction.cells:
        runs = {(trial.dataset, trial.seed): run_of(trial) for trial in cell.trials}
        for dataset in dict.fromkeys(dataset for dataset, _ in runs):
            of_seed = {seed: run for (data, seed), run in runs.items() if data == dataset and run in asked}
            if left := [seed for seed, run in of_seed.items() if run in missing]:
                seeds = f"seed{'' if len(left) == 1 else 's'} {ranges(left)}"
                yield f"{title_of(dataset)}: {cell.name} ({len(left)} of {len(of_seed)}: {seeds})"


def _searches(one: Asked, place: Place) -> Iterator[str]:
    """Data sets whose settings have not been searched for, or not to the end."""
    found = found_settings(one.reproduction, one.results / one.reproduction.name)
    asked = one.reproduction.settings["trials"]
    for dataset in chosen_datasets(found, place.only):
        best = found[dataset]
        if best is None:
            yield f"{title_of(dataset)}: its search"
        elif not best.is_done(asked):
            yield f"{title_of(dataset)}: the rest of its search ({best.trials} of {number_of(asked, 'trial')} done)"


def needs(reproduction: Reproduction) -> str:
    """The data sets, and the files beside them."""
    sources = shared()["sources"]
    data = dict.fromkeys(sources[name] for name in _datasets(reproduction) if name in sources)
    files = dict.fromkeys(file for file in _files(reproduction) if isinstance(file, str))
    return "; ".join([*data, *files]) or "nothing that is not here"


def _files(reproduction: Reproduction) -> Iterator[Any]:
    """What trials, searches and galleries name beside their data: weights, pairs, masks; pairs may be a number."""
    for trial in reproduction.trials:
        yield from (trial.config.weights, trial.config.pairs, trial.config.masks)
    for entry in reproduction.settings.get("gallery", ()):
        yield from entry.get("files", ())
    if reproduction.kind == "search" and not reproduction.quick:
        for dataset in reproduction.settings["studies"]:
            settings = papers_settings(dataset)
            yield from (settings.get("weights"), settings["pairs"])


def _datasets(reproduction: Reproduction) -> list[str]:
    galleries = [entry["dataset"] for entry in reproduction.settings.get("gallery", ())]
    searched = list(_searched(reproduction))
    return list(dict.fromkeys([*(trial.dataset for trial in reproduction.trials), *galleries, *searched]))


def takes(reproduction: Reproduction, standing: Standing) -> str:
    """Time of all trials of each data set, from the rows of those measured; `not measured` where there are none.

    Of several machines by that which measured the most: another may have run the shortest alone.
    """
    counts = Counter(trial.dataset for trial in reproduction.trials) + Counter(_searched(reproduction))
    if not counts:
        return "seconds to minutes on a CPU" if reproduction.kind in ("theory", "schematic") else "not measured"
    most = {time.dataset: time for time in sorted(standing.times, key=lambda time: time.measured)}
    parts = []
    for time in (time for time in standing.times if time is most[time.dataset]):
        count = counts[time.dataset]
        trials = f"{count} trials of {time.seconds:.0f} s{_company(time)}, the mean of {time.measured} measured"
        needed = duration(count * time.seconds / time.sharing)
        parts.append(f"{title_of(time.dataset)} {needed} on {time.hardware} ({trials})")
    parts += [f"{title_of(name)} not measured ({count} trials)" for name, count in counts.items() if name not in most]
    return "; ".join(parts)


def _company(time: Time) -> str:
    """What was at work on the GPU beside a trial, in words; nothing of one that was alone."""
    told = [f"{time.sharing} at a time on one GPU"] if time.sharing > 1 else []
    told += ["others at work on the GPU"] if time.others else []
    return "".join(f", {what}" for what in told)


def _searched(reproduction: Reproduction) -> dict[str, int]:
    """The data sets that a search trains on, with its trials; of the small version others than it is named by."""
    if reproduction.kind != "search":
        return {}
    data = shared()["quick"]["data"] if reproduction.quick else {}
    settings = reproduction.settings
    return {data.get(dataset, dataset): settings.get("trials", 0) for dataset in settings["studies"]}


def _done(reproduction: Reproduction, here: Standing, there: Standing | None) -> str:
    """What is done in the folder of results, and in the project's own where that is another."""
    if reproduction.kind == "search":
        count, what = len(reproduction.settings["studies"]), "searches"
    elif not reproduction.trials:
        return "made anew every time"
    else:
        count, what = len(reproduction.trials), "trials"
    done = f"{here.done} of {count} {what}"
    return done if there is None else f"{done} here, {there.done} in the project's own results"
