"""A table as an HTML page: that of a study, or any with figures beneath."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ipg.experiments.tables.study import StudyTable
from ipg.report.html import inline, rendered
from ipg.words import number_of

__all__ = ["Beneath", "as_html", "table_page"]


class Beneath(NamedTuple):
    """A table beneath the first."""

    title: str
    head: Sequence[str]
    cells: Sequence[Sequence[str]]
    notes: Sequence[str]


def as_html(table: StudyTable) -> str:
    """The page of a study as a string."""
    lead = f"{number_of(len(table.lines), 'arm')}, measured on the split {table.split}."
    return table_page(table.study, [lead], table.head, table.cells, table.notes)


def table_page(
    title: str,
    lead: Sequence[str],
    head: Sequence[str],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str],
    figures: Iterable[str] = (),
    further: Iterable[Beneath] = (),
) -> str:
    """A page: sentences under its title, the table with its notes, further ones, and figures (SVG of ours) beneath."""
    pictures = [inline(svg) for svg in figures]
    tables = [Beneath("Results", head, cells, notes), *further]
    return rendered("table.html", title=title, lead=lead, tables=tables, figures=pictures)
