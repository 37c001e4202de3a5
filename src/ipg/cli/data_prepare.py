"""`ipg data prepare`: data sets made from what their authors give out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ipg.cli.errors import clear, help_without_command
from ipg.cli.progress import bar

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode="markdown",
    help="Make Waterbirds from CUB and Places, or unpack CelebA.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

WATERBIRDS_EXAMPLES = """
**Examples**

`ipg data prepare waterbirds --cub CUB_200_2011 --places places365 --output waterbirds100 --correlation 1`

`ipg data prepare waterbirds --cub CUB_200_2011 --places places365 --output waterbirds80 --correlation 0.8 --seed 3`
"""
CELEBA_EXAMPLES = """
**Examples**

`ipg data prepare celeba --archives downloads --output celeba`
"""


@app.callback(invoke_without_command=True)
def _main(context: typer.Context) -> None:
    help_without_command(context)


@app.command("waterbirds", epilog=WATERBIRDS_EXAMPLES)
@clear
def waterbirds(
    cub: Annotated[Path, typer.Option(help="The folder CUB_200_2011, with segmentations in it or beside it.")],
    places: Annotated[Path, typer.Option(help="The folder of Places365's images.")],
    output: Annotated[Path, typer.Option(help="The folder to make.")],
    correlation: Annotated[float, typer.Option(help="Share of training birds that stand where they belong.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of validation birds, places and backgrounds.")] = 0,
) -> None:
    """Lay CUB's birds on backgrounds of Places, in the official layout.

    The same command again continues where it was interrupted. Both tasks, bird and place, are read from the one folder.
    """
    from ipg.data.prepare_waterbirds import prepare

    with bar("birds") as show:
        where = prepare(cub, places, output, correlation=correlation, seed=seed, progress=show)
    names = {1.0: "waterbirds100", 0.95: "waterbirds95"}
    typer.echo(f"made: ipg data check {names.get(correlation, 'waterbirds')} --data-path {shlex.quote(str(where))}")


@app.command("celeba", epilog=CELEBA_EXAMPLES)
@clear
def celeba(
    archives: Annotated[Path, typer.Option(help="The folder with the zips and lists that you downloaded.")],
    output: Annotated[Path, typer.Option(help="The folder to make.")],
) -> None:
    """Unpack CelebA from its authors' or Kaggle's archives into the official layout, every image checked.

    The same command again continues where it was interrupted.
    """
    from ipg.data.prepare_celeba import prepare

    with bar("images") as show:
        where = prepare(archives, output, progress=show)
    typer.echo(f"made: ipg data check celeba --data-path {shlex.quote(str(where))}")
