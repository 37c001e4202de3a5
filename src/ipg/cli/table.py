"""`ipg table`: what was measured of a study, beside the paper's figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ipg.cli.options import OtherModel, OtherNormalization, OtherWeights, network_of

__all__ = ["EXAMPLES", "table"]

EXAMPLES = """
**Examples**

`ipg table colored_mnist`: one of the project's own studies, as Markdown

`ipg table mine.toml --results results --format latex --output table.tex`: a study of your own, for a paper

`ipg table colored_mnist --format csv`: every number apart, for a spreadsheet

`ipg table waterbirds100_tuned --groups --compare 1 3`: with the accuracy of every group, and two arms seed by seed
"""

KNOWN_BY = {"md": 0, "csv": 0, "latex": 3, "json": 1}
"""The line by which a table is known again: its head, its label, or the name of its study."""


def table(
    name: Annotated[
        str, typer.Argument(help="Study file (TOML), or the name of one of the project's own.", metavar="STUDY")
    ],
    results: Annotated[
        Path, typer.Option(help="Folder of the results: of all studies, or of the rows of this one.")
    ] = Path("results"),
    format_: Annotated[str, typer.Option("--format", help="md, latex, csv, json or html.")] = "md",
    output: Annotated[Path | None, typer.Option(help="File to write; by default the table is printed.")] = None,
    model: OtherModel = None,
    weights: OtherWeights = None,
    normalization: OtherNormalization = None,
    groups: Annotated[
        bool, typer.Option("--groups", help="Columns for balanced accuracy and for the accuracy of every group.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Compare two arms over the seeds that both have: each by its method, METHOD/PROTOCOL or the number of "
            "its line.",
            metavar="ARM ARM",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is no table of this study.")] = False,
) -> None:
    """Show a study as a table: ours beside the paper's, the difference, seeds, selection rule, hardware and commit.

    Rows that do not say where they come from are refused.
    """
    from ipg.experiments.study import find_study

    study = find_study(name)
    if (network := network_of(model, weights, normalization)) is not None:
        study = replace(study, trials=network.over(study.trials, study.name))

    from ipg.experiments.arms import published
    from ipg.experiments.tables.formats import FORMATS
    from ipg.experiments.tables.rows import measured_of
    from ipg.experiments.tables.study import study_table
    from ipg.files import write_text
    from ipg.report.table_page import as_html

    formats = {**FORMATS, "html": as_html}
    if format_ not in formats:
        raise ValueError(f"there is no format {format_!r}; there are {', '.join(formats)}")
    if compare is not None and format_ == "csv":
        raise ValueError("--compare: a table as csv has no place for what stands beneath it; choose another --format")
    places = [results / study.name / "trials.jsonl", results / "trials.jsonl"]
    file = next((place for place in places if place.exists()), None)
    if file is None:
        raise ValueError(f"there are no rows of {study.name} in {results}; make them with: ipg study {name}")
    found = measured_of(study, file)
    if not any(arm.rows for arm in found.arms):
        raise ValueError(f"{file} has no row of a trial of {study.name}; make them with: ipg study {name}")
    text = formats[format_](study_table(found, published(), groups=groups, compare=compare))
    if output is None:
        typer.echo(text, nl=False)
        return
    if output.is_file() and not force and not _replaces(output, text, format_):
        raise ValueError(
            f"{output} exists and is no {format_} table of {study.name}; name another file with --output, or replace "
            f"it with --force"
        )
    typer.echo(f"Table: {write_text(output, text)}")


def _replaces(file: Path, text: str, format_: str) -> bool:
    """Whether `file` holds such a table as `text` is: the same command, given again, replaces what it wrote."""
    if format_ == "html":
        from ipg.report.html import is_page

        return is_page(file)
    return text.splitlines()[KNOWN_BY[format_]].encode() in file.read_bytes().splitlines()
