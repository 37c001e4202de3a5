"""The table of `docs/reliability.md`, made from the rows in `results/reliability.jsonl`. No number is typed by hand.

python -m campaign.page --write docs/reliability.md    # what stands between its markers
python -m campaign.page --check docs/reliability.md    # exits 1 where the page is not what the rows give
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from campaign.interface import CAMPAIGNS, campaign

from ipg.experiments.store import read_rows
from ipg.experiments.table import fill
from ipg.experiments.tables.text import commit_text, wrapped
from ipg.files import write_text

__all__ = ["main", "page"]

NOT_RUN = "Not run yet."


def page(text: str, rows: Iterable[dict[str, Any]]) -> str:
    """The page with every campaign in its place, each with its newest row."""
    newest = {row["campaign"]: row for row in rows}
    return fill(text, {"campaigns": "\n\n".join(_section(name, newest.get(name)) for name in CAMPAIGNS)})


def _section(name: str, row: dict[str, Any] | None) -> str:
    found = campaign(name)
    return "\n\n".join(
        [
            f"### {name.capitalize()}",
            wrapped(f"**Promised.** {found.PROMISE}"),
            wrapped(f"**Tried.** {found.MEANS}"),
            wrapped(f"**Not promised.** {found.LIMITS}"),
            wrapped(f"**Seen.** {_seen(row)}"),
        ]
    )


def _seen(row: dict[str, Any] | None) -> str:
    if row is None:
        return NOT_RUN
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    return (
        f"{row['cases']:,} cases, {row['failures']:,} of them not as promised; seed {row['seed']}, {row['hardware']}, "
        f"{versions}, commit {commit_text(row['commit'])}, {row['date'][:10]}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(prog="campaign.page", description="Make the table of reliability.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="PAGE", help="fill in this page")
    what.add_argument("--check", type=Path, metavar="PAGE", help="exit 1 where it is not what the rows give")
    parser.add_argument(
        "--rows", type=Path, help="the rows; ../results/reliability.jsonl from the page where not given"
    )
    given = parser.parse_args(arguments)
    place: Path = given.write or given.check
    old = place.read_text(encoding="utf-8")
    new = page(old, read_rows(given.rows or place.resolve().parents[1] / "results" / "reliability.jsonl"))
    if old == new:
        return 0
    if given.check:
        print(f"{place} is not what the rows give; run python -m campaign.page --write {place}", file=sys.stderr)
        return 1
    write_text(place, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
