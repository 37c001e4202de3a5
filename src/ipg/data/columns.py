"""Tables on disk (CSV, TSV, gzipped or not, or Parquet) as columns of text that know their lines."""

from __future__ import annotations

import csv
import difflib
import gzip
import importlib
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipg.data.errors import DataError, ProblemsError

__all__ = ["FORMULA", "TABLE_SUFFIXES", "Columns", "as_cell", "of_cell", "parse_csv", "read_columns"]

TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
LARGEST_TABLE = 1 << 30
"""Bytes of a table, unpacked."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a cell begins that a spreadsheet would compute."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Columns:
    """A table of text: a list a column, all of one length."""

    what: str
    """What it is called in messages: the name of its file."""
    values: Mapping[str, list[str]]
    lines: list[int]
    """The line in the file of every row."""

    @classmethod
    def of_rows(
        cls, what: str, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], *, wrong: str
    ) -> Columns:
        """The columns that `header` names, from one row or more with their lines.

        Raises:
            ProblemsError: rows are longer or shorter than the header; `wrong` says how long, `found` and `expected`.
        """
        if problems := [
            f"{what} line {line} has {wrong.format(found=len(row), expected=len(header))}"
            for line, row in rows
            if len(row) != len(header)
        ]:
            raise ProblemsError(problems)
        cells = zip(*(row for _, row in rows), strict=True)
        values = {name: [cell.strip() for cell in column] for name, column in zip(header, cells, strict=True)}
        return cls(what, values, [line for line, _ in rows])

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> list[str]:
        return self.values[name]

    def where(self, row: int) -> str:
        """How a message refers to a row."""
        return f"{self.what} line {self.lines[row]}"

    def only(self, rows: Sequence[int]) -> Columns:
        """The same with these rows alone."""
        values = {name: [cells[row] for row in rows] for name, cells in self.values.items()}
        return replace(self, values=values, lines=[self.lines[row] for row in rows])

    def spelt(self, names: Iterable[str]) -> Columns:
        """The same with columns called as in `names` that differ from them in case alone, where only one does."""
        asked, plain = list(names), Counter(name.lower() for name in self.values)
        taken = {name.lower() for name in asked if name in self.values}
        wanted = {name.lower(): name for name in asked if plain[name.lower()] == 1 and name.lower() not in taken}
        return replace(self, values={wanted.get(name.lower(), name): cells for name, cells in self.values.items()})

    def require(self, *names: str) -> None:
        """DataError where a column is missing."""
        if missing := [name for name in names if name not in self.values]:
            near = difflib.get_close_matches(missing[0], list(self.values), n=1)
            raise DataError(
                f"{self.what} has no column {', '.join(missing)}; its first line names {', '.join(self.values)[:200]}"
                + (f": is {near[0]} meant for {missing[0]}?" if near else "")
            )

    def numbers(self, name: str, meaning: Mapping[str, int], problems: list[str]) -> list[int]:
        """The column as numbers by `meaning`; each text that has none becomes one of the `problems`, and -1."""
        found = []
        for row, text in enumerate(self.values[name]):
            number = meaning.get(text)
            if number is None:
                problems.append(f"{self.where(row)}: {name} is {text!r}, expected {' or '.join(meaning)}")
            found.append(-1 if number is None else number)
        return found


def read_columns(path: Path) -> Columns:
    """Read a table of `TABLE_SUFFIXES`."""
    if not path.exists():
        raise DataError(f"there is no table {path}")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(LARGEST_TABLE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LARGEST_TABLE:
        raise DataError(f"{path} is larger than {LARGEST_TABLE:,} bytes: it is no table of images")
    return parse_csv(data, str(path))


def parse_csv(data: bytes, what: str) -> Columns:
    """The columns of a CSV whose first line names them; separated by commas, semicolons or tabs.

    Lines whose cells are all empty, and columns of such behind the last name, are passed over: spreadsheets leave both.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{what} line {line}: byte {data[error.start]:#04x} is not UTF-8; save the table as UTF-8"
        ) from error
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise DataError(f"{what} line {reader.line_num} is no CSV: {error}") from error
    if not any(header):
        raise DataError(f"{what} is empty; its first line must name the columns")
    width = max(number for number, name in enumerate(header, start=1) if name)
    if not any(cell.strip() for _, row in rows for cell in row[width:]):
        header, rows = header[:width], [(line, row[:width]) for line, row in rows]
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{what} has two columns of the name {twice[0]!r}")
    if not rows:
        raise DataError(f"{what} has no row below its first line")
    return Columns.of_rows(what, header, rows, wrong="{found} cells, its first line {expected}")


def as_cell(text: str) -> str:
    """A cell of a CSV that a spreadsheet shows as `text`: behind an apostrophe where it would compute it.

    Numbers are none of these, negative ones included. `of_cell` gives the text back.
    """
    return f"'{text}" if text.lstrip("'").startswith(FORMULA) and not _NUMBER.fullmatch(text) else text


def of_cell(cell: str) -> str:
    """The text of a cell that `as_cell` may have made; other cells are their own."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def _read_parquet(path: Path) -> Columns:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        remedy = 'install it (pip install "invariance-pair-guidance[parquet]") or save a CSV'
        raise DataError(f"{path}: Parquet needs pyarrow; {remedy}") from None
    table: dict[str, list[Any]] = {}
    unpacked = 0
    try:
        with parquet.ParquetFile(path) as file:
            table = {name: [] for name in file.schema_arrow.names}
            for part in file.iter_batches():
                unpacked += part.nbytes
                if unpacked > LARGEST_TABLE:
                    break
                for name, cells in part.to_pydict().items():
                    table[name] += cells
    except Exception as error:  # of pyarrow's own kinds
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    if unpacked > LARGEST_TABLE:
        raise DataError(f"{path} unpacks to more than {LARGEST_TABLE:,} bytes: it is no table of images")
    for name, cells in table.items():
        if nested := [type(cell).__name__ for cell in cells if isinstance(cell, list | dict | tuple | bytes)]:
            raise DataError(f"{path}: the column {name} holds {nested[0]}; expected text or numbers")
    values = {name: ["" if cell is None else str(cell).strip() for cell in cells] for name, cells in table.items()}
    rows = len(next(iter(values.values()), []))
    if not rows:
        raise DataError(f"{path} has no row")
    return Columns(str(path), values, list(range(1, rows + 1)))
