"""`ipg compare`: several methods on one's own data, and a page that says how they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipg.cli.options import (
    ClusterAddress,
    Cpus,
    Gpus,
    Workers,
    check_cluster,
    cluster_of,
    data_name,
    with_settings_but,
)

if TYPE_CHECKING:
    from ipg.experiments.compare import Facts
    from ipg.experiments.store import Store
    from ipg.experiments.study import Study
    from ipg.report.compared import Comparison

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = """
**Examples**

`ipg compare --methods erm,ipg,jtt`: three methods on the embedded images, three seeds each

`ipg compare --data photos.csv --pairs pairs --methods erm,ipg,groupdro --seeds 5 --output runs/photos`: on your own
images, with a folder of pairs

`ipg compare --methods erm,jtt --seeds 0,7,42 -o jtt.copies=5 --workers 1`: seeds by number, an option of one method,
one run after the other so that times can be compared

`ipg compare --methods erm,ipg,ncm -o ncm.model=linear -o ipg.every=1`: settings for one method alone

**Continuing.** The same command again runs what is missing or failed and writes the page anew. With more methods or
seeds it adds them.
"""
SHARED = ("method", "options", "seed")
"""Settings in which the runs differ."""


@with_settings_but(*SHARED)
def compare(
    *,
    methods: Annotated[
        str, typer.Option(help="Methods to compare, separated by commas (`ipg methods` lists all).")
    ] = "erm,ipg",
    seeds: Annotated[str, typer.Option(help="How many seeds, or the seeds themselves: 0,7,42.")] = "3",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            help="An option of one method, or a setting for it alone, e.g. ncm.freeze=true.",
            metavar="METHOD.NAME=VALUE",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; options on the command line override it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the rows and the page; by default runs/compare-DATA.")
    ] = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    settings: dict[str, Any],
) -> None:
    """Train several methods with the same seeds on the same data, and write one page on how they differ.

    All methods get the same settings, but for those that -o gives to one alone. If a method cannot train on the data,
    the command says so before anything trains.
    A run that fails does not stop the others; the command then exits with 1.
    """
    check_cluster(cluster, cpus, gpus, workers)

    from ipg.config import RunConfig, load_config

    base = load_config(config, overrides=settings) if config is not None else RunConfig.from_mapping(settings)
    if base.options:
        raise ValueError(f"{config}: options are of one method; give them as -o METHOD.NAME=VALUE")
    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    numbers, own = _seeds(seeds), _options(option or [])

    from rich.console import Console  # torch takes seconds to load: mistakes in the settings do not wait for it

    from ipg.cli.console import command_line
    from ipg.experiments.compare import as_called, comparison, examine, keep_record
    from ipg.experiments.runner import run_study, workers_for
    from ipg.report.compare_page import write_comparison
    from ipg.report.html import check_page
    from ipg.words import number_of

    folder = output or Path("runs") / f"compare-{data_name(base.data)}"
    base = as_called(base, folder)
    study = comparison(base, chosen, numbers, own)
    check_page(folder / "report.html", remedy="name another folder with --output")
    console = Console()
    each = f"{', '.join(chosen)} with {number_of(len(numbers), 'seed')}" + (" each" if len(chosen) > 1 else "")
    console.print(f"{number_of(len(study.trials), study.unit)}: {each}", highlight=False)
    _rows(folder)  # refused, where they are damaged, before anything is trained
    facts = examine(study)
    keep_record(study, facts, folder)
    at_once = None if cluster is not None else workers_for(len(study.trials), base.device, workers)
    tally = run_study(
        study,
        folder,
        data_path=base.data_path,
        device=base.device,
        workers=workers,
        cluster=cluster_of(cluster, cpus, gpus),
        console=console,
    )
    if not tally.done and not tally.failed:
        raise ValueError("other processes are at all runs of the comparison; give the command again when they are done")
    if not tally.done:
        raise ValueError(f"no run of the comparison succeeded; {folder / 'trials'} says why in error.txt of each")
    found = _collect(study, facts, folder, given=_given(base, own), workers=at_once, command=command_line())
    _print(console, found)
    typer.echo(f"Report: {write_comparison(folder / 'report.html', found)}")
    if tally.failed:
        raise typer.Exit(1)


def _seeds(text: str) -> list[int]:
    """A number of seeds, or the seeds."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"--seeds {text}: expected how many there are, e.g. 5, or the seeds with commas, e.g. 0,7,42")
    return [int(part) for part in parts] if len(parts) > 1 else list(range(int(parts[0])))


def _options(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options of methods' own, and settings for one alone, by method."""
    found: dict[str, dict[str, str]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        method, dot, name = name.strip().partition(".")
        if not (equals and dot and name):
            raise ValueError(f"--option {text!r}: expected METHOD.NAME=VALUE, e.g. -o jtt.copies=5")
        found.setdefault(method, {})[name.strip().replace("-", "_")] = value.strip()
    return found


def _given(base: Any, own: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Settings of the training that are not the defaults; what follows from others is one."""
    from ipg.config import RunConfig

    aside = ("data", "data_path", "device", "resident", "shard", "masks", *SHARED)
    plain, flat = vars(RunConfig()), base.flat()
    changed = {name: flat[name] for name, value in vars(base).items() if name not in aside and value != plain[name]}
    return changed | {f"{method}.{name}": value for method, named in own.items() for name, value in named.items()}


def _collect(
    study: Study, facts: Facts, folder: Path, *, given: Mapping[str, Any], workers: int | None, command: str
) -> Comparison:
    """The rows of the study, and why others are missing."""
    from ipg.experiments.compare import own_settings
    from ipg.experiments.store import Store
    from ipg.experiments.tables.text import NAMES
    from ipg.report.compared import Comparison, MethodRows, series_of
    from ipg.training.start import as_started

    store = Store(folder)
    rows = _rows(folder)
    names = list(dict.fromkeys(trial.method for trial in study.trials))
    views, own = [], own_settings(study)
    for name, series in zip(names, series_of(names), strict=True):
        trials = [trial for trial in study.trials if trial.method == name]
        done = {trial.seed: rows[trial.key] for trial in trials if trial.key in rows}
        failed = {trial.seed: _why(store, trial.key) for trial in trials if trial.key not in rows}
        views.append(MethodRows(name, NAMES.get(name, name), series, done, failed, own[name]))
    config = as_started(study.shared or study.trials[0].config)
    shared = {name: value for name, value in config.flat().items() if name not in ("seed", "method", *config.options)}
    seeds = list(dict.fromkeys(trial.seed for trial in study.trials))
    return Comparison(facts, views, seeds, config.selection, given, shared, workers, command)


def _rows(folder: Path) -> dict[str, Mapping[str, Any]]:
    """The rows in the folder of a comparison, by the keys of trials."""
    from ipg.experiments.store import Store
    from ipg.experiments.tables.rows import trial_rows

    return {row.get("key", ""): row for row in trial_rows(Store(folder).rows)}


def _why(store: Store, key: str) -> str:
    """Why a run has no row, in a line."""
    if store.is_held(key):
        return "another process is at it"
    file = store.error_file(key)
    lines = file.read_text(encoding="utf-8").strip().splitlines() if file.exists() else []
    return lines[-1] if lines else "not run"


def _print(console: Any, found: Comparison) -> None:
    """The main figures as a table."""
    from rich.markup import escape
    from rich.table import Column, Table

    from ipg.cli.console import percent
    from ipg.report.caveats import went_wrong

    table = Table(
        Column("method", no_wrap=True), *("worst group", "average", "pairs disagree", "time × plain", "seeds")
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for method in found.methods:
        spreads = [method.spread(metric) for metric in ("worst_group", "average", "pair_disagreement")]
        times = found.times(method)
        cells = [percent(spread.mean if spread else None) for spread in spreads]
        table.add_row(escape(method.name), *cells, "–" if times is None else f"{times.mean:.2f}", str(len(method.rows)))
    console.print("Test images, % right, mean over seeds", highlight=False)
    console.print(table)
    for method in found.methods:
        for line in went_wrong(method):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
