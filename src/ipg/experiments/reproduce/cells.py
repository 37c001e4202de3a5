"""A table as cells of text: read back from Markdown, and written as Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipg.experiments.tables.formats import latex
from ipg.experiments.tables.text import markdown
from ipg.files import write_json, write_text

__all__ = ["KEPT_TABLE", "Table", "read_markdown", "write_table"]

KEPT_TABLE = "table.md"
"""Among the rows of a reproduction that has none: its table as it was made last."""


@dataclass(frozen=True)
class Table:
    """Cells of text, and sentences beneath."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    text: int = 2
    """So many columns lean left."""
    records: tuple[Mapping[str, Any], ...] = ()
    """The same with every number apart and in full, where there is more to say than the cells do."""
    title: str = ""
    """What stands above it, of one that is not the first."""
    name: str = ""
    """What its files are called by, of one that is not the first."""
    further: tuple[Table, ...] = ()
    """Tables beneath, which have none themselves."""

    def markdown(self) -> str:
        """The table and its notes, and those beneath."""
        above = [f"{self.title}:"] if self.title else []
        own = markdown(self.head, self.lines, text=self.text)
        return "\n\n".join([*above, own, *self.notes, *(table.markdown() for table in self.further)])

    def csv(self) -> str:
        """The records of this table alone; nothing for what is not known."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        found = self.as_records()
        writer.writerows([list(found[0]), *(record.values() for record in found)] if found else [self.head])
        return out.getvalue()

    def as_records(self) -> tuple[Mapping[str, Any], ...]:
        """The records, or the cells by the names of their columns where there are none."""
        return self.records or tuple(dict(zip(self.head, line, strict=True)) for line in self.lines)

    def of_version(self, version: str) -> Table:
        """The same with records that say whether they are of the small version, those beneath as well."""
        records = tuple({"version": version, **record} for record in self.as_records())
        return replace(self, records=records, further=tuple(table.of_version(version) for table in self.further))


def read_markdown(text: str) -> Table:
    """The table that `Table.markdown` wrote, with those beneath; its records are its cells and where they come from.

    Raises:
        ValueError: there is no table in it, or one does not name its commit.
    """
    blocks = [block.strip() for block in text.strip().split("\n\n") if block.strip()]
    places = [place for place, block in enumerate(blocks) if block.startswith("|")]
    found = []
    for number, (place, after) in enumerate(itertools.pairwise([*places, len(blocks)]), start=1):
        titled = place > 0 and blocks[place - 1].endswith(":")
        notes = blocks[place + 1 : after]
        if notes and notes[-1].endswith(":") and after < len(blocks):  # the title of the next
            notes = notes[:-1]
        head, rule, *lines = (
            tuple(cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
            for line in blocks[place].splitlines()
        )
        title = blocks[place - 1].removesuffix(":") if titled else ""
        name = re.sub(r"\W+", "-", title.lower()).strip("-") or str(number)
        if number == 1:  # stands under the heading of all
            title = name = ""
        source = next((note for note in notes if "; commit `" in note), None)
        if source is None:
            raise ValueError(f"table {number} in it does not name its commit, so that it may not be quoted")
        records = tuple({**dict(zip(head, line, strict=True)), "origin": source} for line in lines)
        lean = rule.count("---")
        found.append(Table(head, tuple(lines), tuple(notes), lean, records, title=title, name=name))
    if not found:
        raise ValueError("there is no table in it")
    return replace(found[0], further=tuple(found[1:]))


def write_table(
    table: Table, folder: Path, title: str, before: Sequence[str] = (), figures: Sequence[Path] = ()
) -> list[Path]:
    """Write the table as Markdown (with title, sentences and figures), CSV, LaTeX and JSON.

    Tables beneath stand in the same files, but for CSV, where each has one of its own, `table-NAME.csv`.
    """
    pictures = [f"![{path.stem}]({path.name})" for path in figures]
    above = [text for text in before if text]
    page = "\n\n".join([f"# {title}", *above, table.markdown(), *pictures]) + "\n"
    tex = [_latex(table, [f"{title}.", *above], folder.name)]
    tex += [_latex(one, [f"{one.title}."] if one.title else [], f"{folder.name}-{one.name}") for one in table.further]
    written = {"table.md": page, "table.csv": table.csv(), "table.tex": "\n".join(tex)}
    written |= {f"table-{one.name}.csv": one.csv() for one in table.further}
    files = [write_text(folder / name, content) for name, content in written.items()]
    content = {"title": title, "about": above, **_content(table)}
    if table.further:
        content["further"] = [{"name": one.name, "title": one.title, **_content(one)} for one in table.further]
    return [*files, write_json(folder / "table.json", content)]


def _latex(table: Table, before: Sequence[str], label: str) -> str:
    notes = [note.replace("*", "") for note in (*before, *table.notes)]
    return latex(table.head, table.lines, notes, label=label, text=table.text)


def _content(table: Table) -> dict[str, Any]:
    return {"cells": list(table.as_records()), "notes": list(table.notes)}
