"""A table as an HTML page: that of a study, or any with figures beneath."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipg.experiments.tables.study import StudyTable
from ipg.report.html import inline, rendered
from ipg.words import number_of

__all__ = ["as_html", "table_page"]


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
) -> str:
    """A page: sentences under its title, the table with its notes, and figures (SVG of ours) beneath."""
    pictures = [inline(svg) for svg in figures]
    return rendered("table.html", title=title, lead=lead, head=head, cells=cells, notes=notes, figures=pictures)
