"""A study's table as Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence

from ipg.data.columns import as_cell
from ipg.experiments.tables.study import StudyTable
from ipg.experiments.tables.text import markdown, wrapped

__all__ = ["FORMATS", "as_csv", "as_json", "as_latex", "as_markdown", "latex"]

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "α": r"$\alpha$",
    "<": "$<$", ">": "$>$",
}  # fmt: skip
"""What LaTeX would take for something else, and letters that its fonts lack."""


def as_markdown(table: StudyTable) -> str:
    """The table and its notes."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in table.cells]
    return "\n\n".join([markdown(table.head, lines), *map(wrapped, table.notes)]) + "\n"


def as_latex(table: StudyTable) -> str:
    """A `table` for a paper; it needs the package booktabs."""
    return latex(table.head, table.cells, table.notes, label=table.study)


def latex(
    head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str], *, label: str, text: int = 1
) -> str:
    """Cells as a `table` of LaTeX, the notes as its caption; the first `text` columns lean left."""
    rows = [" & ".join(map(_escaped, line)) + r" \\" for line in (head, *lines)]
    caption = " ".join(map(_escaped, notes))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', label)}}}",
            rf"\begin{{tabular}}{{{'l' * text}{'r' * (len(head) - text)}}}",
            *(r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"),
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def as_csv(table: StudyTable) -> str:
    """A line an arm with every number apart and in full; empty where there is none, and nowhere a formula."""
    out = io.StringIO()
    records = table.records()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: as_cell(v) if isinstance(v, str) else v for k, v in record.items()} for record in records)
    return out.getvalue()


def as_json(table: StudyTable) -> str:
    """The same as an object, with what all arms share."""
    content = {"study": table.study, "split": table.split, "shared": table.shared, "origin": table.origin}
    compared = {"compared": [one.record() for one in table.compared]} if table.compared else {}
    return json.dumps({**content, "arms": table.records(), **compared}, indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[StudyTable], str]] = {
    "md": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}


def _escaped(text: str) -> str:
    """Code in typewriter letters, everything else letter by letter."""
    parts = text.split("`")
    plain = ["".join(SPECIAL.get(letter, letter) for letter in part) for part in parts]
    return "".join(rf"\texttt{{{part}}}" if number % 2 else part for number, part in enumerate(plain))
