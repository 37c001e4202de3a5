"""The table of `docs/reliability.md`, made from the rows in `results/reliability.jsonl`. No number is typed by hand.

python -m campaign.page --write docs/reliability.md    # what stands between its markers, and figures beside it
python -m campaign.page --check docs/reliability.md    # exits 1 where page or figure is not what the rows give
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from campaign.interface import CAMPAIGNS, campaign

from ipg.experiments.pages import bring_up_to_date, fill, page_parser
from ipg.experiments.store import read_rows
from ipg.experiments.tables.text import commit_text, wrapped

__all__ = ["TITLES", "main", "page", "pages"]

NOT_RUN = "Not run yet."
TITLES = {"gpu": "GPU"}
"""Of campaigns whose name is not a word."""


def page(text: str, rows: Iterable[dict[str, Any]]) -> str:
    """The page with every campaign in its place, each with its newest row."""
    newest = _newest(rows)
    return fill(text, {"campaigns": "\n\n".join(_section(name, newest.get(name)) for name in CAMPAIGNS)})


def pages(place: Path, rows: Iterable[dict[str, Any]]) -> dict[Path, str]:
    """The page and the figures beside it, as the rows give them."""
    rows = list(rows)
    drawn: dict[Path, str] = {}
    for name, row in _newest(rows).items():
        if name in CAMPAIGNS and hasattr(found := campaign(name), "figures"):
            drawn |= {place.parent / file: svg for file, svg in found.figures(row).items()}
    return {place: page(place.read_text(encoding="utf-8"), rows), **drawn}


def _newest(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["campaign"]: row for row in rows}


def _section(name: str, row: dict[str, Any] | None) -> str:
    found = campaign(name)
    shown = [found.shown(row)] if row is not None and hasattr(found, "shown") else []
    return "\n\n".join(
        [
            f"### {TITLES.get(name, name.replace('_', ' ').capitalize())}",
            wrapped(f"**Promise.** {found.PROMISE}"),
            wrapped(f"**Test.** {found.MEANS}"),
            wrapped(f"**Not promised.** {found.LIMITS}"),
            wrapped(f"**Result.** {_seen(row)}"),
            *filter(None, shown),
        ]
    )


def _seen(row: dict[str, Any] | None) -> str:
    if row is None:
        return NOT_RUN
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    hardware = row["hardware"].replace(" 1 threads", " 1 thread")
    return (
        f"{row['failures']:,} of {row['cases']:,} cases broke the promise (seed {row['seed']}, {hardware}, {versions}, "
        f"commit {commit_text(row['commit'])}, {row['date'][:10]})."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its figures, or check them."""
    parser = page_parser("campaign.page", "Make the table of reliability.")
    parser.add_argument(
        "--rows", type=Path, help="the rows; ../results/reliability.jsonl from the page where not given"
    )
    given = parser.parse_args(arguments)

    def make(place: Path) -> dict[Path, str]:
        return pages(place, read_rows(given.rows or place.resolve().parents[1] / "results" / "reliability.jsonl"))

    return bring_up_to_date(parser.prog, given, make)


if __name__ == "__main__":
    sys.exit(main())
