"""`ipg pairs`: make invariance pairs of images, look at them, and reject those that would mislead."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipg.cli import pairs_audit, pairs_build, pairs_merge, pairs_verdict
from ipg.cli.errors import clear, help_without_command
from ipg.cli.options import MOVED, KnownAttributeColumn, KnownLabelColumn, KnownPathColumn
from ipg.words import are, number_of

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode="markdown",
    help="Build, show, audit, reject, accept and merge invariance pairs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SHOW_EXAMPLES = """
**Examples**

`ipg pairs show pairs`: writes pairs/sheet.html

`ipg pairs show pairs --worst --count 40 --output worst.png`

`ipg pairs show mine.csv --data waterbirds100 --data-path data/waterbirds100`
"""


@app.callback(invoke_without_command=True)
def _main(context: typer.Context) -> None:
    help_without_command(context)


def show(
    manifest: Annotated[Path, typer.Argument(help="A manifest, or the folder it is in.", metavar="MANIFEST")],
    output: Annotated[
        Path | None, typer.Option(help="The sheet, .html or .png; by default sheet.html beside the manifest.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many pairs to show, taken evenly from all.")] = 100,
    worst: Annotated[bool, typer.Option("--worst", help="Show the lowest scores of an audit first.")] = False,
    data: Annotated[str | None, typer.Option(help="The data set, if the folder does not say.")] = None,
    data_path: Annotated[str | None, typer.Option(help=MOVED)] = None,
    path_column: KnownPathColumn = None,
    label_column: KnownLabelColumn = None,
    attribute_column: KnownAttributeColumn = None,
) -> None:
    """Write a contact sheet: the members of pairs side by side, with number, label, score and reason.

    On the page, click pairs to reject or accept them: it puts the command together that does it.
    """
    from ipg.cli.pairs_data import open_data
    from ipg.pairs.references import References
    from ipg.pairs.rows import DATA, Manifest
    from ipg.pairs.sheet import cards, write

    read = Manifest.read(manifest)
    needed = any(name.startswith(DATA) for pair in read.pairs for name in (pair.first, pair.second))
    columns = {"path_column": path_column, "label_column": label_column, "attribute_column": attribute_column}
    found = open_data(read.folder, data, data_path, columns=columns) if needed or data else None
    references = References(read.folder, found.table if found else None)
    shown = cards(read, references, count=count, worst=worst)
    where = write(output or read.folder / "sheet.html", read, shown)
    typer.echo(f"{len(shown):,} of {number_of(len(read), 'pair')} {are(len(read))} in {where}")


app.command("build", epilog=pairs_build.EXAMPLES)(clear(pairs_build.build))
app.command("show", epilog=SHOW_EXAMPLES)(clear(show))
app.command("merge", epilog=pairs_merge.EXAMPLES)(clear(pairs_merge.merge))
app.command("audit", epilog=pairs_audit.EXAMPLES)(clear(pairs_audit.audit))
app.command("reject", epilog=pairs_verdict.REJECT_EXAMPLES)(clear(pairs_verdict.reject))
app.command("accept", epilog=pairs_verdict.ACCEPT_EXAMPLES)(clear(pairs_verdict.accept))
