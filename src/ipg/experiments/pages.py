"""Pages that are made from rows: what stands between their markers, and the commands that write or check them.

A page says where something goes by `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ipg.files import write_text

__all__ = ["between", "bring_up_to_date", "fill", "page_parser"]


def between(page: str, name: str, text: str) -> str:
    """`page` with `text` in the place of what stands between the markers of that name.

    Raises:
        ValueError: one of them is missing.
    """
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no place for {name!r}; put {start} and {end} where it goes")
    return f"{before}{start}\n{text}\n{end}{after}"


def fill(page: str, tables: Mapping[str, str]) -> str:
    """`page` with every table in its place, between the markers `results:NAME`.

    Raises:
        ValueError: a marker is missing, or there is no table for one.
    """
    for name in {*tables, *re.findall(r"<!-- results:(\w+) -->", page)}:
        if name not in tables:
            raise ValueError(f"the page has a place for {name!r}, of which there is no study")
        page = between(page, f"results:{name}", tables[name])
    return page


def page_parser(program: str, description: str) -> argparse.ArgumentParser:
    """The command line `python -m PROGRAM --write PAGE`, or `--check PAGE`."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="PAGE", help="fill in this page, and write what comes with it")
    what.add_argument("--check", type=Path, metavar="PAGE", help="exit 1 where something is not what the rows give")
    return parser


def bring_up_to_date(program: str, given: argparse.Namespace, make: Callable[[Path], Mapping[Path, str | None]]) -> int:
    """Write the files that are not what the rows give, or name them; the exit status.

    Args:
        program: whose command it is.
        given: what `page_parser` has read.
        make: gives the files that come of a page, itself among them; None for a file that is to go.
    """
    page: Path = given.write or given.check
    try:
        made = make(page)
        there = {path: path.read_text(encoding="utf-8") if path.is_file() else None for path in made}
    except (OSError, ValueError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    stale = {path: text for path, text in made.items() if there[path] != text}
    for path, text in stale.items():
        if given.check:
            stands = "is missing" if there[path] is None else "is not what the rows give"
            print(f"{path} {stands}; run python -m {program} --write {page}", file=sys.stderr)
        elif text is None:
            path.unlink()
            print(f"{path}: removed")
        else:
            write_text(path, text)
            print(f"{path}: written")
    return 1 if stale and given.check else 0
