"""`ipg reproduce`: every table and figure of the paper, and ours beside them, with one command each."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from ipg.cli.options import (
    TIME_IS_OVER,
    ClusterAddress,
    Cpus,
    Engine,
    Gpus,
    Limit,
    Only,
    OtherModel,
    OtherNormalization,
    OtherWeights,
    Workers,
    check_cluster,
    cluster_of,
    network_of,
    seconds_of,
)

__all__ = ["EXAMPLES", "reproduce"]

EXAMPLES = """
**Examples**

`ipg reproduce --list`: what there is, what each needs, how long it takes and what is done

`ipg reproduce alpha_tau --seeds 3 --list`: what is missing of one, setting by setting

`ipg reproduce pairs --quick`: a small version on embedded images, on any machine

`ipg reproduce accuracy_colored_mnist --data-path colored_mnist=mnist.npz`: the paper's table, ten seeds

`ipg reproduce alpha_tau --only dataset=colored_mnist --seeds 3 --limit 9m`: a part of it, three seeds, within ten
minutes; the table says how many seeds it has

`ipg reproduce pairs ablation label_noise --seeds 3`: what is missing of several, in one queue, seed by seed

`ipg reproduce all --limit 8h`: everything but the searches, as far as that time allows

`ipg reproduce ablation --data-path waterbirds100=data --model resnet50 --weights resnet50.safetensors`: photographs by
the paper's network, whose weights you have

`ipg reproduce ablation --table-only`: the table from existing rows; nothing is run

**Several at once.** Their trials share one queue and its processes: seed 0 of all, then seed 1. A run that several ask
for is made once. What compares times comes last, with one process per GPU whatever `--workers` says. A table in which
`--only` leaves nothing is skipped.

**Continuing.** The same command again runs what is still missing. Rows of every study in the folder of results count if
they are of the same run.
"""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures to reproduce; --list shows all. `all`: everything but searches, which must be "
            "named.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Show what there is and what is done; for those you name also what is missing. Runs nothing.",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on embedded images; every output says so.")
    ] = False,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Write tables and figures from existing rows; run nothing.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of the studies' rows.")] = Path("results"),
    output: Annotated[Path, typer.Option(help="Folder that tables and figures go to.")] = Path("runs/reproduced"),
    where: Annotated[
        list[str] | None,
        typer.Option("--data-path", help="Where data is: a path, or DATASET=PATH; may be repeated.", metavar="PATH"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    engine: Engine = "auto",
    workers: Workers = None,
    cluster: ClusterAddress = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    model: OtherModel = None,
    weights: OtherWeights = None,
    normalization: OtherNormalization = None,
    chosen: Only = None,
    seeds: Annotated[
        int | None, typer.Option(help="Only this many seeds of each setting, from the first; all by default.", min=1)
    ] = None,
    limit: Limit = None,
) -> None:
    """Reproduce tables and figures of the paper: run what is missing, and write ours beside the paper's.

    A trial that fails does not stop the others. Exits with 1 if trials have failed, and with 75 if --limit has left
    some.
    """
    check_cluster(cluster, cpus, gpus, workers)
    if show and not names:
        from ipg.experiments.reproduce.list import listing

        for line in listing(results):
            typer.echo(_wrapped(line))
        return
    if not names:
        raise ValueError("say what to reproduce, e.g. ipg reproduce pairs --quick; ipg reproduce --list shows all")

    from rich.console import Console

    from ipg.experiments.reproduce.run import Place, reproduce_all

    place = Place(
        results,
        output,
        _paths(where or []),
        device,
        engine,
        workers,
        not table_only,
        Console(),
        only=tuple(chosen or ()),
        seeds=seeds,
        cluster=cluster_of(cluster, cpus, gpus),
        network=network_of(model, weights, normalization),
        limit=seconds_of(limit),
    )
    if show:
        from ipg.experiments.reproduce.list import named_listing

        for line in named_listing(names, place, quick=quick):
            typer.echo(_wrapped(line))
        return
    written = reproduce_all(names, place, quick=quick)
    for file in (file for one in written for file in one.files):
        typer.echo(file)
    if any(one.failed for one in written):
        raise typer.Exit(1)
    if any(one.left for one in written):
        raise typer.Exit(TIME_IS_OVER)


def _wrapped(line: str) -> str:
    """A line of the list as wide as the terminal, what goes on under what it goes on with."""
    from rich.console import Console

    label = re.match(r" +\w+ +", line)  # of a line beneath a name
    indent = " " * (label.end() if label else 2)
    return textwrap.fill(
        line, Console().width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _paths(given: list[str]) -> dict[str, str]:
    """Paths by data set; a path alone counts for all."""
    paths: dict[str, str] = {}
    for entry in given:
        name, equals, path = entry.partition("=")
        key, value = (name.replace("-", "_"), path) if equals and "/" not in name else ("", entry)
        if key in paths:
            raise ValueError(f"--data-path {entry}: there is one already for {key or 'all data sets'}; give it once")
        paths[key] = value
    return paths
