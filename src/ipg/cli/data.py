"""`ipg data`: which data sets there are, fetching them, and looking at what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipg.cli.errors import clear, help_without_command

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode="markdown",
    help="List, fetch and check data sets.",
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
CHECK_EXAMPLES = """
**Examples**

`ipg data check colored_fashion`

`ipg data check colored_mnist --data-path mnist.npz --seed 3`
"""

ABOUT = {
    "colored_fashion": ("clothes whose colour gives the class away in training", "embedded"),
    "colored_fashion_noisy": ("the same with 25 % wrong labels and colours that mislead at times", "embedded"),
    "colored_mnist": ("the paper's: digits below five or not, colour for a shortcut", "MNIST"),
    "colored_mnist_clean": ("the same without label noise", "MNIST"),
    "colored_mnist_train_noise": ("label noise in training and validation alone", "MNIST"),
    "colored_mnist_irm": ("14×14, as in Invariant Risk Minimization", "MNIST"),
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

    table = Table("data set", "what it is", "files")
    for name, about in ABOUT.items():
        table.add_row(name, *about)
    Console().print(table)


@app.command("fetch", epilog=FETCH_EXAMPLES)
@clear
def fetch(
    name: Annotated[str, typer.Argument(help="What to fetch: mnist.", metavar="NAME")],
    folder: Annotated[Path | None, typer.Option(help="Where to put it; a cache folder where not given.")] = None,
) -> None:
    """Download a data set from its public mirrors, checked against known checksums."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ipg.data.errors import DataError
    from ipg.data.mnist import fetch as fetch_mnist

    if name != "mnist":
        raise DataError(f"{name!r} cannot be fetched; what can is: mnist")
    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        where = fetch_mnist(folder, progress=show)
    typer.echo(f"MNIST is in {where}")


@app.command("check", epilog=CHECK_EXAMPLES)
@clear
def check(
    name: Annotated[str, typer.Argument(help="A data set of `ipg data list`.", metavar="NAME")],
    data_path: Annotated[str | None, typer.Option(help="Where its files are.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of splits, noise and colours.")] = 0,
) -> None:
    """Count the images of each split and group, and say what the counts mean for training."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from ipg.data.load import load

    table = load(name, path=data_path, size=size, seed=seed)
    shown = Table(
        title=f"{table.name}: {len(table):,} images of {'×'.join(map(str, table.images.shape[1:]))}",
        title_justify="left",
    )
    shown.add_column("split")
    shown.add_column("images", justify="right")
    for group in table.group_names:
        shown.add_column(group, justify="right")
    empty: list[str] = []
    for split in table.splits:
        part = table.part(split)
        counts = torch.bincount(part.group, minlength=len(table.group_names)).tolist()
        shown.add_row(split, f"{len(part):,}", *(f"{count:,}" for count in counts))
        if split == "train":
            empty = [group for group, count in zip(table.group_names, counts, strict=True) if not count]
    console = Console()
    console.print(shown)
    if empty:
        console.print(
            f"No training image at all in: {'; '.join(empty)}. Reweighting groups cannot help there; pairs can.",
            highlight=False,
        )
