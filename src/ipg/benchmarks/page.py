"""The tables and the figure of `docs/speed.md`, made from the rows in `results/`. No number is typed by hand.

    python -m ipg.benchmarks.page --write docs/speed.md    # what stands between its markers, and the figure beside it
    python -m ipg.benchmarks.page --check docs/speed.md    # exits 1 where page or figure is not what the rows give

A place for a table is `<!-- results:growth -->` and `<!-- /results:growth -->`, or another name of `TABLES`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ipg.benchmarks.figures import TITLES, Curve, draw_growth, growth_data, power
from ipg.benchmarks.rows import Row, newest, read
from ipg.experiments.pages import bring_up_to_date, fill, page_parser
from ipg.experiments.tables.rows import check_provenance
from ipg.experiments.tables.text import markdown, origin, short

__all__ = ["benchmark_table", "growth_table", "pages"]

TABLES: dict[str, tuple[str, ...]] = {
    "distances": ("distances", "distances memory"),
    "steps": ("steps",),
    "peers": ("loops", "spuco"),
    "gpu": ("gpu", "pretrained", "loading", "trials"),
    "rest": ("evaluation", "startup"),
    "growth": ("growth",),
    "threads": ("threads",),
}
"""Names of tables, and the benchmarks whose rows are in them."""
MISSING = "Not measured yet."
NONE = "–"


def benchmark_table(rows: Sequence[Row]) -> str:
    """Every case with its value and its ratio, a table a machine."""
    parts = []
    for here in _machines(rows).values():
        head = ["case", "median", "quartiles", "ratio", "to", "ideal"]
        lines = [
            [
                row["case"],
                f"{short(row['value'])} {row['unit']}",
                f"{short(row['low'])} to {short(row['high'])}" if row["low"] != row["high"] else NONE,
                NONE if row["ratio"] is None else short(row["ratio"]),
                row["baseline"] or NONE,
                short(row["ideal"]) if row["ideal"] else NONE,
            ]
            for row in here
        ]
        parts += [f"{origin(here)}:", markdown(head, lines)]
    return "\n\n".join(parts) or MISSING


def growth_table(rows: Sequence[Row], figures: dict[str, str]) -> str:
    """Slopes and ratios of every size, a table and a figure a machine; `figures` names the files of the latter."""
    parts = []
    for hardware, here in _machines(rows).items():
        curves = growth_data(here)
        if curves:
            head = ["grows with", "from … to", "plain, ms", "slope", "at the end", "guided, ms", "slope", "at the end"]
            head += ["guided / plain", "ideal"]
            table = markdown(head, [_growth_line(curve) for curve in curves])
            parts += [f"![How the cost of a step grows, on {hardware}]({figures[hardware]})", table]
            parts.append(f"{origin(here)}.")
    return "\n\n".join(parts) or MISSING


def _growth_line(curve: Curve) -> list[str]:
    def ends(values: Sequence[float]) -> str:
        return f"{short(values[0])} … {short(values[-1])}"

    cells = [TITLES.get(curve.name, curve.name), f"{curve.sizes[0]:,} … {curve.sizes[-1]:,}"]
    for method in ("erm", "ipg"):
        cells += [ends(curve.costs[method]), power(curve.slope(method)), power(curve.last_slope(method))]
    return [*cells, ends(curve.ratios), ends(curve.ideals)]


def _machines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The newest rows, by machine."""
    return {machine: list(newest(rows, machine).values()) for machine in dict.fromkeys(row["hardware"] for row in rows)}


def pages(page: Path, rows: Sequence[Row]) -> dict[Path, str]:
    """The page and the figures beside it, as the rows give them."""
    growing = [row for row in rows if row["benchmark"] == "growth"]
    figures = {
        hardware: f"growth-{re.sub(r'[^a-z0-9]+', '-', hardware.lower()).strip('-')}.svg"
        for hardware, here in _machines(growing).items()
        if growth_data(here)
    }
    text = page.read_text(encoding="utf-8")
    tables = {}
    for name, benchmarks in TABLES.items():
        if f"<!-- results:{name} -->" in text:
            wanted = [row for row in rows if row["benchmark"] in benchmarks]
            tables[name] = growth_table(wanted, figures) if name == "growth" else benchmark_table(wanted)
    if not tables:
        raise ValueError(f"{page} has no place for a table; put <!-- results:growth --> and its end where one goes")
    drawn = {
        page.parent / figures[hardware]: draw_growth(growth_data(here), title=f"Milliseconds a step, {hardware}")
        for hardware, here in _machines(growing).items()
        if hardware in figures
    }
    return {page: fill(text, tables), **drawn}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its figures, or check them."""
    parser = page_parser("ipg.benchmarks.page", "Make the tables and the figure of speed.")
    parser.add_argument("--rows", type=Path, help="the rows; ../results/speed.jsonl from the page where not given")
    given = parser.parse_args(arguments)

    def make(page: Path) -> dict[Path, str]:
        file = given.rows or page.resolve().parents[1] / "results" / "speed.jsonl"
        rows = read(file)
        check_provenance(rows, file)
        return pages(page, rows)

    return bring_up_to_date(parser.prog, given, make)


if __name__ == "__main__":
    sys.exit(main())
