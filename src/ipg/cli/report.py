"""`ipg report`: one self-contained page on finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipg.cli.options import MOVED, Network

if TYPE_CHECKING:
    from ipg.notebook import Run

__all__ = ["EXAMPLES", "report"]

EXAMPLES = """
**Examples**

`ipg report runs/plain runs/guided --output report.html`: before and after on one page

`ipg report old/runs/guided --data-path old/photos --pairs old/pairs`: where images and pairs have moved

`ipg report runs/mine --network python:mine.py:make`: a run that started from your own code
"""


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs on the same data.", metavar="RUN")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    data_path: Annotated[str | None, typer.Option(help=MOVED)] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Where the runs' pairs are, if they have moved.", metavar="MANIFEST")
    ] = None,
    network: Network = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is no page of ipg.")] = False,
) -> None:
    """Write a report on finished runs: galleries, groups, curves, and how it was made."""
    from ipg.cli.console import command_line
    from ipg.cli.own_network import check_needed
    from ipg.report.build import page_data
    from ipg.report.html import check_page
    from ipg.report.page import write

    if output.is_dir():
        raise ValueError(f"{output} is a folder; name the page to write, e.g. --output {output / 'report.html'}")
    if not force:
        check_page(output, remedy="name another file with --output, or replace it with --force")
    check_needed(network, runs)
    loaded = [_load(folder, device, data_path, pairs, network) for folder in runs]
    page = page_data(loaded, command=command_line(), folders=runs)
    typer.echo(f"Report: {write(output, page)}")


def _load(folder: Path, device: str, data_path: str | None, pairs: str | None, network: str | None) -> Run:
    """A run; what is wrong with its data names it."""
    from ipg.cli.own_network import made_by
    from ipg.data.errors import DataError
    from ipg.notebook import Run

    model = made_by(network, folder)
    try:
        return Run.load(folder, device=device, data_path=data_path, pairs=pairs, network=model)
    except DataError as error:
        if str(folder) in str(error):
            raise
        raise DataError(f"{folder}: {error}") from None
