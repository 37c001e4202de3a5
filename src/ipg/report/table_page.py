"""A study's table as an HTML page."""

from __future__ import annotations

from ipg.experiments.tables.study import StudyTable
from ipg.report.html import rendered

__all__ = ["as_html"]


def as_html(table: StudyTable) -> str:
    """The page as a string."""
    return rendered("table.html", table=table)
