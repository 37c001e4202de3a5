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
    text: int = 1
    """So many columns lean left."""


REPEATED = ("hardware", "commit")
"""Columns that a page leaves out where they say the same in every line and a note says it, too."""


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
    *,
    text: int = 1,
) -> str:
    """A page: sentences under its title, the table with its notes, further ones, and figures (SVG of ours) beneath.

    So many columns as `text` says lean left.
    """
    pictures = [inline(svg) for svg in figures]
    tables = [_slim(table) for table in (Beneath("Results", head, cells, notes, text), *further)]
    return rendered("table.html", title=title, lead=lead, tables=tables, figures=pictures)


def _slim(table: Beneath) -> Beneath:
    """The table without columns in which nothing stands that is not said beneath."""
    said = " ".join(table.notes)
    kept = []
    for column, name in enumerate(table.head):
        values = {line[column] for line in table.cells} - {"", "–"}
        told = name in REPEATED and len(values) == 1 and next(iter(values)) in said
        if column < table.text or not (told or (not name and not values)):
            kept.append(column)
    return table._replace(
        head=[table.head[column] for column in kept],
        cells=[[line[column] for column in kept] for line in table.cells],
    )
