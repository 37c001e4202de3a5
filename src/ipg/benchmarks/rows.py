"""Rows of what was measured, one a line: a case, its value and ratio, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ipg.benchmarks.measure import Measurement
from ipg.files import parse_json
from ipg.training.provenance import provenance

__all__ = ["Key", "Row", "append", "key", "newest", "read", "row"]

Row = dict[str, Any]
Key = tuple[str, str, str, str | None]


def row(found: Measurement, device: torch.device) -> Row:
    """A measurement with commit, versions, hardware and date."""
    return asdict(found) | provenance(device)


def append(file: Path, row: Row) -> None:
    """Add `row` at the end of `file`, its numbers to five digits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    short = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(short, ensure_ascii=False) + "\n")


def read(file: Path) -> list[Row]:
    """The rows of `file`.

    Raises:
        ValueError: there is no such file, or a line of it is no row of a benchmark.
    """
    if not file.is_file():
        raise ValueError(f"there is no file {file}; `ipg bench --write {file}` makes one")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found = parse_json(line)
            key(found), found["hardware"], found["value"], found["ratio"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{file}, line {number} is not a row of `ipg bench`") from None
        rows.append(found)
    return rows


def key(row: Row) -> Key:
    """What makes two rows measurements of the same: benchmark, case, unit and baseline."""
    return row["benchmark"], row["case"], row["unit"], row["baseline"]


def newest(rows: Iterable[Row], hardware: str) -> dict[Key, Row]:
    """The last row of each case on one machine; rows stand in the order in which they were measured."""
    return {key(row): row for row in rows if row["hardware"] == hardware}
