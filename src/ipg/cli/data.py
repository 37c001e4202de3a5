"""`ipg data`: which data sets there are, fetching and preparing them, and looking at what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipg.cli import data_check, data_prepare
from ipg.cli.errors import clear, help_without_command

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode="markdown",
    help="List, fetch, prepare, check and cache data sets.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

LIST_EXAMPLES = """
**Examples**

`ipg data list`
"""
FETCH_EXAMPLES = """
**Examples**

`ipg data fetch mnist`: into the default folder, where ColoredMNIST looks by itself

`ipg data fetch mnist --folder data/mnist`
"""
CACHE_EXAMPLES = """
**Examples**

`ipg data cache`: what is kept and how large it is

`ipg data cache --clear`
"""

ABOUT = {
    "colored_fashion": ("clothes whose colour gives the class away in training", "embedded"),
    "colored_fashion_noisy": ("the same with 25 % wrong labels and colours that mislead at times", "embedded"),
    "colored_mnist": ("the paper's: digits below five or not, colour for a shortcut", "MNIST"),
    "colored_mnist_clean": ("the same without label noise", "MNIST"),
    "colored_mnist_train_noise": ("label noise in training and validation alone", "MNIST"),
    "colored_mnist_irm": ("14×14, as in Invariant Risk Minimization", "MNIST"),
    "colored_mnist_dair": ("three channels, as in DAIR", "MNIST"),
    "colored_mnist_test0": ("tested where colour agrees in 90 %", "MNIST"),
    "colored_mnist_test1": ("tested where colour agrees in 80 %", "MNIST"),
    "colored_mnist_test2": ("tested where colour agrees in 10 %: colored_mnist by another name", "MNIST"),
    "waterbirds100": ("birds on land or water, always where they belong in training", "Waterbirds"),
    "waterbirds100_reverse": ("the same images: land or water, whatever the bird", "Waterbirds"),
    "waterbirds95": ("as published first: 95 % stand where they belong", "Waterbirds"),
    "waterbirds95_reverse": ("the same images: land or water", "Waterbirds"),
    "waterbirds": ("as you prepared it, of any strength", "Waterbirds"),
    "waterbirds_reverse": ("the same images: land or water", "Waterbirds"),
    "celeba": ("faces: blond or not, gender for a shortcut; or celeba:LABEL/SHORTCUT", "CelebA"),
    "celeba_subset": ("any part of CelebA, so that figures say so", "CelebA"),
    "folder": ("your own, or say the path itself: a folder a class, a CSV or Parquet", "yours"),
}
"""What each data set is, and the files it needs."""


@app.callback(invoke_without_command=True)
def _main(context: typer.Context) -> None:
    help_without_command(context)


@app.command("list", epilog=LIST_EXAMPLES)
@clear
def list_sets() -> None:
    """List the data sets."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("data set", "what it is", "files"):
        table.add_column(heading, no_wrap=heading != "what it is")
    for name, about in ABOUT.items():
        table.add_row(name, *about)
    Console().print(table)


@app.command("fetch", epilog=FETCH_EXAMPLES)
@clear
def fetch(
    name: Annotated[str, typer.Argument(help="What to fetch: mnist.", metavar="NAME")],
    folder: Annotated[Path | None, typer.Option(help="Where to put it; by default a cache folder.")] = None,
) -> None:
    """Download a data set from its public mirrors, checked against known checksums."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ipg.data.errors import DataError
    from ipg.data.mnist import fetch as fetch_mnist

    if name != "mnist":
        raise DataError(
            f"{name!r} cannot be fetched; what can is: mnist. Waterbirds and CelebA come from their authors: "
            f"`ipg data prepare --help`"
        )
    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        where = fetch_mnist(folder, progress=show)
    typer.echo(f"MNIST is in {where}")


@app.command("cache", epilog=CACHE_EXAMPLES)
@clear
def cache(clear: Annotated[bool, typer.Option("--clear", help="Delete all of it.")] = False) -> None:
    """List the decoded images that are kept (in IPG_CACHE, or ~/.cache/ipg), or delete them."""
    from rich.console import Console
    from rich.table import Table

    from ipg.data.cache import clear_cache, list_cache
    from ipg.data.locations import cache_folder

    if clear:
        typer.echo(f"{clear_cache() / 1e6:,.1f} MB freed in {cache_folder()}")
        return
    entries = list_cache()
    if not entries:
        typer.echo(f"no decoded images in {cache_folder()}")
        return
    table = Table("data set", "images", "size", "fit", "MB", "since")
    for entry in entries:
        facts = [str(entry.facts.get(name, "?")) for name in ("data", "images", "size", "fit")]
        table.add_row(*facts, f"{entry.bytes / 1e6:,.1f}", str(entry.facts.get("date", "?")))
    Console().print(table)
    typer.echo(f"{sum(entry.bytes for entry in entries) / 1e6:,.1f} MB in {cache_folder()}")


app.command("check", epilog=data_check.EXAMPLES)(clear(data_check.check))
app.add_typer(data_prepare.app, name="prepare")
