"""`ipg data check`: what is in a data set and what that means for training."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ipg.cli.errors import printable
from ipg.cli.options import AttributeColumn, EnvironmentColumn, LabelColumn, PathColumn, SplitSeed
from ipg.words import number_of

if TYPE_CHECKING:
    from rich.console import Console

    from ipg.data.check import Finding, Report
    from ipg.data.errors import ProblemsError
    from ipg.data.listing import Listing

__all__ = ["EXAMPLES", "check"]

EXAMPLES = """
**Examples**

`ipg data check colored_fashion`

`ipg data check photos`: a folder of your own, with a folder for each class in it

`ipg data check photos/labels.csv --size 160`: a table with the columns path and label, perhaps attribute and split

`ipg data check photos/labels.csv --path-column filename --label-column class`: one whose columns are called otherwise

`ipg data check waterbirds100 --data-path data/waterbirds100 --json`

`ipg data check celeba:Smiling/Male --data-path data/celeba`
"""

MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("·", "bold")}
"""How a severity looks."""
SHOWN = 8
"""How many of the images or groups of a finding are named."""
ALIKE = 5
"""How many problems are named that differ in names and numbers alone."""
NAMES_AND_NUMBERS = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
MOST_ROWS = 80
"""How many lines of counts are shown."""


def check(
    name: Annotated[
        str,
        typer.Argument(help="A data set of `ipg data list`, or a folder, zip or table of your own.", metavar="NAME"),
    ],
    data_path: Annotated[str | None, typer.Option(help="Where its files are.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of noise and colours, and of splits that are drawn with them.")] = 0,
    split_seed: SplitSeed = 0,
    path_column: PathColumn = "path",
    label_column: LabelColumn = "label",
    attribute_column: AttributeColumn = "attribute",
    environment_column: EnvironmentColumn = "environment",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")] = False,
) -> None:
    """Count the images of each split, label and group, look for broken ones and copies, and say what that means.

    Exits with 1 if something is broken, so that training would refuse the data.
    """
    import json

    from rich.console import Console

    from ipg.data.check import check_files, check_table
    from ipg.data.errors import ProblemsError
    from ipg.data.load import list_files, load
    from ipg.data.reading import Reading

    reading = Reading(split_seed, path_column, label_column, attribute_column, environment_column)
    console = Console(highlight=False)
    problems: list[str] = []
    try:
        listing = list_files(name, path=data_path, reading=reading)
    except ProblemsError as error:
        problems = error.problems
        listing = _rest(error)
        if not as_json:
            _show_problems(console, name, problems)
        elif listing is None:
            typer.echo(json.dumps({"data": name, "broken": True, "problems": problems}, ensure_ascii=False, indent=2))
        if listing is None:
            raise typer.Exit(1) from None
    if listing is None:
        report = check_table(load(name, path=data_path, size=size, seed=seed, reading=reading))
    else:
        report = check_files(listing, size=size)
    if as_json:
        told = report.to_json() | ({"broken": True, "problems": problems} if problems else {})
        typer.echo(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        if problems:
            console.print("What follows is of the other rows.")
        _show(console, report)
    if problems or report.broken:
        raise typer.Exit(1)


def _rest(error: ProblemsError) -> Listing | None:
    """The images with which nothing is wrong so far; None where they are no data set by themselves."""
    from ipg.data.errors import DataError
    from ipg.data.listing import RowsError

    try:
        return error.rest() if isinstance(error, RowsError) and error.rest is not None else None
    except DataError:
        return None


def _show_problems(console: Console, name: str, problems: list[str]) -> None:
    import textwrap

    from rich.text import Text

    console.print(Text(f"{name} cannot be used: {number_of(len(problems), 'problem')}", style="bold red"))
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        kinds.setdefault(NAMES_AND_NUMBERS.sub("", problem), []).append(problem)
    for same in list(kinds.values())[: 3 * SHOWN]:
        for problem in same[:ALIKE]:
            indented = textwrap.wrap(printable(problem), console.width - 5, break_long_words=False)
            console.print("  " + "\n    ".join(indented), markup=False, soft_wrap=True)
        if len(same) > ALIKE:
            console.print(f"  … and {len(same) - ALIKE:,} more like these; --json names all")
    if len(kinds) > 3 * SHOWN:
        console.print(f"  … and {len(kinds) - 3 * SHOWN:,} more kinds; --json names all")


def _show(console: Console, report: Report) -> None:
    from rich.markup import escape
    from rich.table import Table

    shape = f" of {'×'.join(map(str, report.shape))}" if report.shape else ""
    console.print(f"{report.name}: {number_of(int(report.counts.sum()), 'image')}{shape}", markup=False)
    table = Table()
    table.add_column("label and attribute" if len(report.attributes) > 1 else "label")
    for split in report.splits:
        table.add_column(split, justify="right")
    table.add_row("all", *(f"{count:,}" for count in report.counts.sum(dim=(1, 2)).tolist()), style="bold")
    rows: list[tuple[str, list[int]]] = []
    for k, label in enumerate(report.classes):
        rows.append((printable(label), report.counts[:, k].sum(dim=1).tolist()))
        if len(report.attributes) > 1:
            rows += [
                (f"  {printable(name)}", report.counts[:, k, a].tolist())
                for a, name in enumerate(report.attributes)
                if (k, a) not in report.impossible
            ]
    for text, counts in rows[:MOST_ROWS]:
        table.add_row(escape(text), *(f"{count:,}" for count in counts))
    console.print(table)
    if len(rows) > MOST_ROWS:
        console.print(f"… and {len(rows) - MOST_ROWS:,} more lines; --json has all")
    for finding in report.findings:
        _show_finding(console, finding)
    if not report.findings:
        console.print("✓ nothing wrong found", style="bold green")


def _show_finding(console: Console, finding: Finding) -> None:
    import textwrap

    from rich.text import Text

    mark, style = MARKS[finding.severity]
    count = f" ({len(finding.items):,})" if finding.items else ""
    console.print(Text(f"{mark} {finding.name}{count}", style=style))
    more = len(finding.items) - SHOWN
    lines = textwrap.wrap(printable(finding.meaning), console.width - 3)
    lines += [f"  {printable(item)}" for item in finding.items[:SHOWN]]
    lines += [f"  … and {more:,} more; --json names all"] if more > 0 else []
    console.print("\n".join(f"  {line}" for line in lines), markup=False, soft_wrap=True)
