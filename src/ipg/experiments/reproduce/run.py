"""Reproduce tables and figures of the paper: run what is missing, then write them with ours beside the paper's.

    python -m ipg.experiments.reproduce --write docs/results.md    # what stands between its markers, and its figures
    python -m ipg.experiments.reproduce --check docs/results.md    # exits 1 where they are not what the rows give

`ipg reproduce` is the way in. Rows go to `results/<name>/trials.jsonl`; rows of any study count that tell of the same
run, so nothing is run twice, unless a reproduction stands alone. The small version keeps its rows in its own folder and
never touches `results`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ipg.data.errors import DataError
from ipg.experiments.pages import bring_up_to_date, page_parser
from ipg.experiments.reproduce.cells import KEPT_TABLE, Table, read_markdown, write_table
from ipg.experiments.reproduce.place import Place, Written
from ipg.experiments.reproduce.plan import (
    Reproduction,
    chosen,
    chosen_datasets,
    load_reproduction,
    names,
    with_network,
)
from ipg.experiments.reproduce.queue import Asked, Run, run_missing
from ipg.experiments.reproduce.table import quick_note, table_of
from ipg.experiments.study import Trial
from ipg.files import write_text
from ipg.words import listed

__all__ = ["ALL", "Place", "Written", "asked_for", "main", "reproduce", "reproduce_all"]

ALL = "all"
"""In the place of a name: everything but searches, which take a hundred trials each."""
RESULTS = Path("results")
"""Where rows go unless another folder is named."""


def reproduce(name: str, place: Place, *, quick: bool = False) -> Written:
    """Reproduce the table or figure of that name; see `reproduce_all`."""
    (written,) = reproduce_all([name], place, quick=quick)
    return written


def reproduce_all(given: Sequence[str], place: Place, *, quick: bool = False) -> list[Written]:
    """Reproduce the tables and figures of these names: trials of all of them in one queue, then the rest one by one.

    `all` stands for everything but searches. Of several, those are passed over of which nothing fits what is to be run.

    Raises:
        ConfigError: there is none of that name, or nothing fits what is to be run.
        DataError: there is not a row, and the files to make one are missing: what, and where to get them.
    """
    place = replace(place, begun=time.monotonic())
    if quick:
        place = replace(place, data_paths={})  # embedded images lie nowhere
    asked = asked_for(given, place, quick=quick)
    of_trials = [one for one in asked if one.reproduction.kind in _OF_TRIALS]
    written = [
        _OF_TRIALS[one.reproduction.kind](one, ran)
        for one, ran in zip(of_trials, run_missing(of_trials, place), strict=True)
    ]
    for one in asked:
        if (make := _OTHERS.get(one.reproduction.kind)) is not None:
            try:
                written.append(make(one.reproduction, replace(place, results=one.results), one.folder))
            except DataError as error:
                if len(asked) == 1:
                    raise
                place.say(str(error))
    return written


def asked_for(given: Sequence[str], place: Place, *, quick: bool) -> list[Asked]:
    """What is asked for of every reproduction that is named, see `reproduce_all`."""
    wanted = list(dict.fromkeys(name for one in given for name in (names() if one == ALL else [one])))
    several = len(wanted) > 1
    known = [load_reproduction(name, quick=quick) for name in wanted]
    trials = [trial for reproduction in known for trial in reproduction.trials] if several and place.only else []
    asked: list[Asked] = []
    passed: dict[str, ValueError] = {}
    for name, reproduction in zip(wanted, known, strict=True):
        if reproduction.kind == "search" and name not in given:
            continue
        folder = place.output / (f"{name}-quick" if quick else name)
        results = folder / "rows" if quick else place.results
        try:
            if place.network is not None:
                reproduction = with_network(reproduction, place.network)
            own = _chosen(reproduction, place, trials, several=several)
            asked.append(Asked(reproduction, folder, results, own))
        except ValueError as error:
            passed[name] = error
    if passed and not asked:
        raise next(iter(passed.values()))
    for name, why in passed.items():
        place.say(f"{name} is passed over: {why}")
    return asked


def _chosen(reproduction: Reproduction, place: Place, beside: Sequence[Trial], *, several: bool) -> tuple[Trial, ...]:
    """The trials that are asked for; none of what has no trials. `beside` it are those of all that are named.

    Raises:
        ValueError: nothing of it fits what is to be run, or it cannot be run there.
    """
    kind = reproduction.kind
    if kind in _OF_TRIALS and reproduction.trials:
        return chosen(reproduction, place.only, place.seeds, beside)
    if place.cluster is not None:
        raise ValueError(f"--cluster: {reproduction.name} has no trials of a study, and is made on this machine")
    is_given = {
        "--only": place.only and kind not in _DATASETS,
        "--seeds": place.seeds is not None and not several,
        "--limit": place.limit is not None and kind != "search" and not several,
    }
    if any(is_given.values()):
        said = listed(name for name, given in is_given.items() if given)
        raise ValueError(f"{said}: {reproduction.name} has no trials of which a part could be run; leave it out")
    if kind in _DATASETS:
        chosen_datasets(_DATASETS[kind](reproduction), place.only)
    return ()


def _write(
    reproduction: Reproduction, folder: Path, table: Table, figures: Mapping[str, str] | None = None
) -> tuple[Path, ...]:
    """The table under its title, with what the paper says above and the figures beneath; all files written.

    Also as a page that holds everything.
    """
    from ipg.report.html import check_page, write_page
    from ipg.report.table_page import Beneath, table_page

    page = folder / "report.html"
    check_page(page, remedy="name another folder with --output")
    pictures = [write_text(folder / f"{stem}.svg", svg) for stem, svg in (figures or {}).items()]
    label = reproduction.paper
    where = f"In the paper: `{label}`. What it says:" if label else "Not a table of the paper."
    before = [quick_note(reproduction), f"{where} {reproduction.claim}"]
    lead = [text for text in before if text]
    further = [Beneath(one.title, one.head, one.lines, one.notes, one.text) for one in table.further]
    drawn = (figures or {}).values()
    html = table_page(reproduction.title, lead, table.head, table.lines, table.notes, drawn, further, text=table.text)
    marked = table.of_version("quick" if reproduction.quick else "whole")
    return (*write_table(marked, folder, reproduction.title, before, pictures), *pictures, write_page(page, html))


def _trials(asked: Asked, ran: Run) -> Written:
    from ipg.experiments.reproduce.figures import figures_of
    from ipg.experiments.reproduce.runtime import with_cost

    reproduction = asked.reproduction
    measured = with_cost(ran.measured) if "cost" in reproduction.metrics else ran.measured
    figures = figures_of(reproduction, measured)
    files = _write(reproduction, asked.folder, table_of(reproduction, measured), figures)
    return Written(asked.folder, files, ran.failed, ran.left)


def _runtime(asked: Asked, ran: Run) -> Written:
    from ipg.experiments.reproduce.runtime import step_table, with_cost

    table = table_of(asked.reproduction, with_cost(ran.measured))
    if (steps := step_table(asked.results)) is not None:
        table = replace(table, further=(steps,))
    return Written(asked.folder, _write(asked.reproduction, asked.folder, table), ran.failed, ran.left)


def _theory(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    kept = place.results / reproduction.name  # in the place of rows, for the page
    if not place.run:
        return _kept(reproduction, place, kept, folder)
    from ipg.experiments.reproduce.theory import schematic, theory

    table, figures = {"theory": theory, "schematic": schematic}[reproduction.kind](reproduction)
    files = _write(reproduction, folder, table, figures)
    if place.results != RESULTS or place.results.is_dir():  # else nobody asked for a folder of results
        files += (write_text(kept / KEPT_TABLE, table.markdown() + "\n"),)
        if svg := figures.get(reproduction.name):
            files += (write_text(kept / f"{reproduction.name}.svg", svg),)
    return Written(folder, files)


def _kept(reproduction: Reproduction, place: Place, kept: Path, folder: Path) -> Written:
    """The table as it was made last, with the figure where one was kept; nothing is run.

    Raises:
        ValueError: what was kept is no table.
    """
    name, file = reproduction.name, kept / KEPT_TABLE
    if not file.is_file():
        place.say(f"{name}: nothing is kept of it in {place.results}; ipg reproduce {name} makes it")
        return Written(folder, ())
    try:
        table = read_markdown(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}; take it away and make it again with: ipg reproduce {name}") from None
    picture = kept / f"{name}.svg"
    figures = {name: picture.read_text(encoding="utf-8")} if picture.is_file() else {}
    if not figures:
        place.say(f"{name}: its table is as it was made last; figures are not kept, ipg reproduce {name} draws them")
    return Written(folder, _write(reproduction, folder, table, figures))


def _galleries(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    if not place.run:
        place.say(f"{reproduction.name}: nothing is kept of it; ipg reproduce {reproduction.name} makes it")
        return Written(folder, ())
    from ipg.experiments.reproduce.galleries import gallery

    files: list[Path] = []
    obstacles: list[str] = []
    datasets = chosen_datasets(_DATASETS["galleries"](reproduction), place.only)
    for entry in (entry for entry in reproduction.settings["gallery"] if entry["dataset"] in datasets):
        made, left = gallery(entry, reproduction.settings["count"], folder, place.data_path(entry["dataset"]))
        files += made
        obstacles += left
    if not files:
        raise DataError(f"nothing of {reproduction.name} can be made here: {obstacles[0]}")
    for why in obstacles:
        place.say(f"not made: {why}")
    return Written(folder, tuple(files))


def _search(reproduction: Reproduction, place: Place, folder: Path) -> Written:
    from ipg.experiments.reproduce.figures import search_drawings
    from ipg.experiments.reproduce.search import search_rows, search_settings, search_table

    home = place.results / reproduction.name
    over = False
    datasets = chosen_datasets(_DATASETS["search"](reproduction), place.only) if place.run else []
    obstacles: dict[str, str] = {}
    for dataset in datasets:
        if over or place.is_over:
            over = True
            break
        try:
            over = not search_settings(reproduction, dataset, home / dataset, place)
        except DataError as error:
            obstacles[dataset] = str(error)
    if datasets and len(obstacles) == len(datasets) and not any(search_rows(reproduction, home).values()):
        raise DataError(f"nothing of {reproduction.name} can be run here: {next(iter(obstacles.values()))}")
    for dataset, why in obstacles.items():
        place.say(f"not run: {dataset}, for {why}")
    table = search_table(reproduction, home)
    figures = {stem: drawing.svg for stem, drawing in search_drawings(reproduction, home).items()}
    return Written(folder, _write(reproduction, folder, table, figures), left=over)


_OF_TRIALS: dict[str, Callable[[Asked, Run], Written]] = {
    "trials": _trials,
    "runtime": _runtime,
    "dynamics": _trials,
}
_OTHERS: dict[str, Callable[[Reproduction, Place, Path], Written]] = {
    "theory": _theory,
    "schematic": _theory,
    "galleries": _galleries,
    "search": _search,
}
_DATASETS: dict[str, Callable[[Reproduction], list[str]]] = {
    "galleries": lambda reproduction: [entry["dataset"] for entry in reproduction.settings["gallery"]],
    "search": lambda reproduction: list(reproduction.settings["studies"]),
}
"""The data sets of what has some and no trials."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill in a page of results and write its figures, or check them."""
    from ipg.experiments.reproduce.page import filled_page

    parser = page_parser("ipg.experiments.reproduce", "Fill in the page of the results.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    given = parser.parse_args(arguments)
    return bring_up_to_date(parser.prog, given, lambda page: filled_page(page, given.results))
