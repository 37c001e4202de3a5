"""Reproduce a table or figure of the paper: run what is missing, then write it with ours beside the paper's.

    python -m ipg.experiments.reproduce --write docs/results.md    # what stands between its markers
    python -m ipg.experiments.reproduce --check docs/results.md    # exits 1 where it is not what the rows give

`ipg reproduce` is the way in. Rows go to `results/<name>/trials.jsonl`; rows of any study count that tell of the same
run, so nothing is run twice, unless a reproduction stands alone. The small version keeps its rows in its own folder and
never touches `results`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ipg.data.errors import DataError
from ipg.experiments.attempt import RunTrial
from ipg.experiments.cluster import Cluster
from ipg.experiments.reproduce.plan import Reproduction, chosen, chosen_datasets, load_reproduction, with_network
from ipg.experiments.reproduce.rows import Measured, all_rows, measure, missing
from ipg.experiments.reproduce.table import KEPT_TABLE, Table, quick_note, table_of, write_table
from ipg.experiments.runner import run_study
from ipg.experiments.study import Network, Study
from ipg.experiments.trial import run_trial
from ipg.files import write_text

__all__ = ["Place", "Written", "reproduce"]


@dataclass(frozen=True)
class Place:
    """Where and how to run, and where things go."""

    results: Path
    """Folder of the studies' rows."""
    output: Path
    """Folder that tables and figures go to, one for each reproduction."""
    data_paths: Mapping[str, str] = field(default_factory=dict)
    """Where data sets are, by name; under "" for all others."""
    device: str = "auto"
    engine: str = "auto"
    workers: int | None = None
    run: bool = True
    """Whether to run what is missing, or to write what the rows give."""
    console: Console = field(default_factory=Console)
    only: tuple[str, ...] = ()
    """What to run, as `ipg study --only` has it; all where nothing is said. Tables tell of all rows there are."""
    seeds: int | None = None
    """Run the first so many seeds of every setting alone."""
    limit: float | None = None
    """Seconds after which trials under way are saved and the rest is left."""
    cluster: Cluster | None = None
    """Where to run trials instead of on this machine."""
    network: Network | None = None
    """In the place of the one that trials which start from weights name."""

    def data_path(self, dataset: str) -> str | None:
        """Where a data set is, where that was said."""
        return self.data_paths.get(dataset, self.data_paths.get(""))

    def say(self, line: str) -> None:
        """Tell whoever looks on."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Written:
    """What came of it."""

    folder: Path
    files: tuple[Path, ...]
    failed: int = 0
    """Trials that failed; they are tried again next time."""
    left: bool = False
    """Whether the time was over before all was run."""


def reproduce(name: str, place: Place, *, quick: bool = False) -> Written:
    """Reproduce the table or figure of that name.

    Raises:
        ConfigError: there is none of that name, or nothing of it fits what is to be run.
        DataError: there is not a row, and the files to make one are missing: what, and where to get them.
    """
    reproduction = load_reproduction(name, quick=quick)
    if place.network is not None:
        reproduction = with_network(reproduction, place.network)
    _check_choice(reproduction, place)
    folder = place.output / (f"{name}-quick" if quick else name)
    if quick:
        place = replace(place, results=folder / "rows", data_paths={})  # embedded images lie nowhere
    return _KINDS[reproduction.kind](reproduction, place, folder)


def _check_choice(reproduction: Reproduction, place: Place) -> None:
    """Refuse to choose among trials, or to have them run elsewhere, where there are none."""
    kind = reproduction.kind
    if place.cluster is not None and not reproduction.trials:
        raise ValueError(f"--cluster: {reproduction.name} has no trials of a study, and is made on this machine")
    given = {
        "--only": place.only and kind not in ("search", "galleries"),
        "--seeds": place.seeds is not None,
        "--limit": place.limit is not None and kind != "search",
    }
    if not reproduction.trials and any(given.values()):
        names = " and ".join(name for name, is_given in given.items() if is_given)
        raise ValueError(f"{names}: {reproduction.name} has no trials of which a part could be run; leave it out")


@dataclass(frozen=True)
class Run:
    """What was measured, and how running the rest went."""

    measured: list[Measured]
    """Every cell with its rows."""
    failed: int
    left: bool
    """Whether the time was over."""


def run_missing(reproduction: Reproduction, place: Place, run: RunTrial = run_trial, kind: str | None = None) -> Run:
    """Run the trials without a row that are asked for, as far as their files are there."""
    begun = time.monotonic()
    rows = all_rows(place.results, kind)
    left = missing(reproduction, rows, place.data_paths, chosen(reproduction, place.only, place.seeds))
    if place.run:
        if left.obstacles and not left.trials and not any(found.rows for found in measure(reproduction, rows)):
            raise DataError(f"nothing of {reproduction.name} can be run here: {next(iter(left.obstacles.values()))}")
        for why in dict.fromkeys(left.obstacles.values()):
            count = sum(other == why for other in left.obstacles.values())
            place.say(f"not run: {count} trials, for {why}")
    failed, over = 0, False
    for (study, dataset), trials in left.trials.items() if place.run else ():
        time_left = None if place.limit is None else place.limit - (time.monotonic() - begun)
        if over or (time_left is not None and time_left <= 0):
            over = True
            break
        tally = run_study(
            Study(study, trials, "test"),
            place.results / study,
            data_path=place.data_path(dataset),
            device=place.device,
            engine=place.engine,
            workers=place.workers,
            cluster=place.cluster,
            limit=time_left,
            run=run,
            console=place.console,
        )
        failed += tally.failed
        over = time_left is not None and tally.done + tally.failed + tally.elsewhere < len(trials)
    return Run(measure(reproduction, all_rows(place.results, kind)), failed, over)


def _write(
    reproduction: Reproduction, folder: Path, table: Table, figures: Mapping[str, str] | None = None
) -> tuple[Path, ...]:
    """The table under its title, with what the paper says above and the figures beneath; all files written.

    Also as a page that holds everything; a note that is a Markdown table of its own is not for it.
    """
    from ipg.report.html import check_page, write_page
    from ipg.report.table_page import table_page

    page = folder / "report.html"
    check_page(page, remedy="name another folder with --output")
    pictures = [write_text(folder / f"{stem}.svg", svg) for stem, svg in (figures or {}).items()]
    where = f"In the paper: `{reproduction.paper}`. " if reproduction.paper else "Not in the paper. "
    before = [quick_note(reproduction), where + f"What it says: {reproduction.claim}"]
    notes = [note for note in table.notes if not note.startswith("|")]
    lead = [text for text in before if text]
    html = table_page(reproduction.title, lead, table.head, table.lines, notes, (figures or {}).values())
    return (*write_table(table, folder, reproduction.title, before, pictures), *pictures, write_page(page, html))


def _trials(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.figures import figures_of
    from ipg.experiments.reproduce.runtime import with_cost

    ran = run_missing(reproduction, place)
    measured = with_cost(ran.measured) if "cost" in reproduction.metrics else ran.measured
    figures = figures_of(reproduction, measured)
    files = _write(reproduction, folder, table_of(reproduction, measured), figures)
    return Written(folder, files, ran.failed, ran.left)


def _runtime(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.runtime import step_table, with_cost

    ran = run_missing(reproduction, place)
    table = table_of(reproduction, with_cost(ran.measured))
    if (steps := step_table(place.results)) is not None:
        table = replace(table, notes=(*table.notes, "Single steps, measured by `ipg bench`:", steps))
    return Written(folder, _write(reproduction, folder, table), ran.failed, ran.left)


def _dynamics(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.dynamics import run_dynamics
    from ipg.experiments.reproduce.figures import dynamics_figures

    ran = run_missing(reproduction, place, run_dynamics, kind="dynamics")
    figures = dynamics_figures(reproduction, [row for found in ran.measured for row in found.rows])
    files = _write(reproduction, folder, table_of(reproduction, ran.measured), figures)
    return Written(folder, files, ran.failed, ran.left)


def _theory(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.theory import schematic, theory

    table, further, figures = {"theory": theory, "schematic": schematic}[reproduction.kind](reproduction)
    table = replace(table, notes=(*table.notes, *further))
    kept = place.results / reproduction.name  # in the place of rows, for the page
    write_text(kept / KEPT_TABLE, table.markdown() + "\n")
    if svg := figures.get(reproduction.name):
        write_text(kept / f"{reproduction.name}.svg", svg)
    return Written(folder, _write(reproduction, folder, table, figures))


def _galleries(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.galleries import gallery

    files: list[Path] = []
    entries = reproduction.settings["gallery"]
    datasets = chosen_datasets((entry["dataset"] for entry in entries), place.only)
    for entry in (entry for entry in entries if entry["dataset"] in datasets):
        made, left = gallery(entry, reproduction.settings["count"], folder, place.data_path(entry["dataset"]))
        files += made
        for why in left:
            place.say(f"not made: {why}")
    return Written(folder, tuple(files))


def _search(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.search import found_settings, search_settings, search_table

    home = place.results / reproduction.name
    machine: dict[str, Any] = {name: getattr(place, name) for name in ("workers", "device", "engine", "console")}
    begun, over = time.monotonic(), False
    for dataset in chosen_datasets(reproduction.settings["studies"], place.only) if place.run else ():
        time_left = None if place.limit is None else place.limit - (time.monotonic() - begun)
        if over or (time_left is not None and time_left <= 0):
            over = True
            break
        try:
            whole = search_settings(
                reproduction, dataset, home / dataset, place.data_path(dataset), limit=time_left, **machine
            )
            over = not whole
        except DataError as error:
            place.say(f"not run: {dataset}, for {error}")
    table = search_table(reproduction, found_settings(reproduction, home))
    return Written(folder, _write(reproduction, folder, table), left=over)


_KINDS: dict[str, Callable[[Reproduction, Place, Path], Written]] = {
    "trials": _trials,
    "runtime": _runtime,
    "dynamics": _dynamics,
    "theory": _theory,
    "schematic": _theory,
    "galleries": _galleries,
    "search": _search,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill in a page of results, or check it."""
    from ipg.experiments.reproduce.page import filled

    parser = argparse.ArgumentParser(prog="ipg.experiments.reproduce", description="Fill in the page of the results.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="PAGE", help="fill in this page")
    what.add_argument("--check", type=Path, metavar="PAGE", help="exit 1 where the page is not what the rows give")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    given: Any = parser.parse_args(arguments)
    page: Path = given.write or given.check
    try:
        before = page.read_text(encoding="utf-8")
        after = filled(before, given.results)
    except (OSError, ValueError) as error:
        print(f"ipg.experiments.reproduce: {error}", file=sys.stderr)
        return 2
    if before == after:
        return 0
    if given.write:
        write_text(page, after)
        print(f"{page}: written")
        return 0
    command = f"python -m ipg.experiments.reproduce --write {page}"
    print(f"{page} is not what the rows give; run {command}", file=sys.stderr)
    return 1
