"""The rows of a manifest: a pair each, read from and written to CSV or Parquet; `manifest` says what they mean."""

from __future__ import annotations

import csv
import difflib
import importlib
import io
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from ipg.data.columns import Columns, as_cell, of_cell, read_columns
from ipg.data.errors import DataError, ProblemsError
from ipg.data.splits import SPLIT_NAMES, SPLITS
from ipg.files import replacing, write_text
from ipg.words import did_you_mean

__all__ = ["COLUMNS", "DATA", "NAMES", "Manifest", "Pair", "check_parquet"]

DATA = "data:"
"""What a reference to an image of the data set begins with."""
NAMES = ("manifest.csv", "manifest.parquet")
"""What a manifest is called in its folder."""
SUFFIXES = (".csv", ".parquet")
COLUMNS = ("first", "second", "label", "split", "builder", "score", "status", "reason", "made_of", "mask")
OPTIONAL = ("label_first", "label_second")
STATES = ("", "ok", "rejected")
COUNTERPARTS = {"image", "counterpart"}
"""Columns of a table that pairs are yet to be made of."""
_REQUIRED = ("first", "second", "label", "split")


@dataclass(frozen=True)
class Pair:
    """A row of a manifest."""

    first: str
    second: str
    label: str
    split: str
    builder: str = "own"
    score: float | None = None
    """How much of what should stay has stayed: 1 all of it, 0 nothing; None before an audit."""
    status: str = ""
    reason: str = ""
    made_of: tuple[str, ...] = ()
    mask: str = ""
    label_first: str = ""
    label_second: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Columns of the user's own, and the distances that an audit measures."""

    @property
    def files(self) -> tuple[str, ...]:
        """What lies beside the manifest for this pair."""
        return tuple(name for name in (self.first, self.second, self.mask) if name and not name.startswith(DATA))

    @property
    def originals(self) -> tuple[str, ...]:
        """Names of all images of the data set that are in the pair."""
        members = (name.removeprefix(DATA) for name in (self.first, self.second) if name.startswith(DATA))
        return tuple(dict.fromkeys([*members, *self.made_of]))

    def cells(self) -> dict[str, str]:
        """The row as text by column."""
        score = "" if self.score is None else f"{self.score:.4f}"
        own = {"made_of": "|".join(self.made_of), "score": score}
        return {name: own.get(name) or str(getattr(self, name) or "") for name in (*COLUMNS, *OPTIONAL)} | dict(
            self.extra
        )


@dataclass(frozen=True)
class Manifest:
    """The pairs of one file."""

    path: Path
    pairs: tuple[Pair, ...]
    lines: tuple[int, ...] = ()
    """The line in the file of every pair."""

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def folder(self) -> Path:
        """What its images are relative to."""
        return self.path.parent

    def where(self, row: int) -> str:
        """How a message refers to a pair."""
        return f"{self.path} line {self.lines[row]}" if self.lines else f"pair {row + 1}"

    def with_pairs(self, pairs: Sequence[Pair]) -> Manifest:
        """The same file with other rows."""
        return replace(self, pairs=tuple(pairs), lines=self.lines if len(pairs) == len(self) else ())

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Manifest:
        """Read a manifest, or that of a folder.

        Raises:
            DataError: there is none, it is empty or its rows are wrong; all that is wrong is said at once.
        """
        place = Path(path).expanduser()
        if place.is_dir():
            found = next((place / name for name in NAMES if (place / name).is_file()), None)
            if found is None:
                raise DataError(f"{place} has no {' or '.join(NAMES)}; `ipg pairs build` makes one")
            place = found
        if not place.exists():
            raise DataError(f"there are no pairs at {place}; {_nearby(place)}")
        columns = read_columns(place)
        if place.suffix != ".parquet":
            texts = {of_cell(name): [of_cell(cell) for cell in cells] for name, cells in columns.values.items()}
            columns = replace(columns, values=texts)
        if columns.values.keys() >= COUNTERPARTS and "first" not in columns:
            raise DataError(
                f"{place} is a table of counterparts, not of pairs: `ipg pairs build counterparts --table "
                f"{shlex.quote(str(place))} --data DATA --output PAIRS` makes pairs of it"
            )
        problems = _unknown(columns)
        columns.require(*_REQUIRED)
        pairs = [_pair(columns, row, problems) for row in range(len(columns))]
        if problems:
            raise ProblemsError(problems)
        return cls(place, tuple(pairs), tuple(columns.lines))

    def write(self) -> Path:
        """Write the file, whole or not at all; as Parquet where its name says so.

        In a CSV no cell is a formula to a spreadsheet: one that begins so is written behind an apostrophe, which
        `read` takes away again.
        """
        rows = [pair.cells() for pair in self.pairs]
        extra = dict.fromkeys(name for pair in self.pairs for name in pair.extra)
        used = [*COLUMNS, *(name for name in OPTIONAL if any(row[name] for row in rows)), *extra]
        if self.path.suffix == ".parquet":
            _write_parquet(self.path, {name: [row.get(name, "") for row in rows] for name in used})
            return self.path
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([as_cell(name) for name in used])
        writer.writerows([as_cell(row.get(name, "")) for name in used] for row in rows)
        return write_text(self.path, text.getvalue())


def check_parquet() -> None:
    """DataError where Parquet cannot be written."""
    _pyarrow("pyarrow")


def _nearby(place: Path) -> str:
    """What may be meant by a place without pairs: one beside it that has some, of nearly its name."""
    beside = sorted(place.parent.glob("*"))
    names = [one.name for one in beside if one.suffix in SUFFIXES or any((one / name).is_file() for name in NAMES)]
    return did_you_mean(place.name, names) or "`ipg pairs build` makes some"


def _unknown(columns: Columns) -> list[str]:
    """Columns that are likely misspelt."""
    missing = [name for name in (*COLUMNS, *OPTIONAL) if name not in columns]
    return [
        f"{columns.what} has a column {name!r}; is {near[0]} meant?"
        for name in columns.values
        if name not in COLUMNS and (near := difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75))
    ]


def _pair(columns: Columns, row: int, problems: list[str]) -> Pair:
    cells = {name: values[row] for name, values in columns.values.items()}
    where = columns.where(row)
    problems += [f"{where}: no {name}" for name in _REQUIRED if not cells[name]]
    split = SPLIT_NAMES.get(cells["split"].lower(), -1)
    if split == 2:
        problems.append(f"{where}: split is {cells['split']!r}; pairs are made of training or validation images alone")
    elif cells["split"] and split < 0:
        problems.append(f"{where}: split is {cells['split']!r}, expected train or validation")
    if (status := cells.get("status", "").lower()) not in STATES:
        problems.append(f"{where}: status is {cells['status']!r}, expected ok, rejected or nothing")
    known = {*COLUMNS, *OPTIONAL}
    return Pair(
        first=cells["first"],
        second=cells["second"],
        label=cells["label"],
        split=SPLITS[split],
        builder=cells.get("builder") or "own",
        score=_score(cells.get("score", ""), where, problems),
        status=status,
        reason=cells.get("reason", ""),
        made_of=tuple(name for name in cells.get("made_of", "").split("|") if name),
        mask=cells.get("mask", ""),
        label_first=cells.get("label_first", ""),
        label_second=cells.get("label_second", ""),
        extra={name: text for name, text in cells.items() if name not in known},
    )


def _score(text: str, where: str, problems: list[str]) -> float | None:
    try:
        score = float(text) if text else None
    except ValueError:
        score = math.nan
    if score is not None and not math.isfinite(score):
        problems.append(f"{where}: score is {text!r}, expected a number or nothing")
    return score


def _write_parquet(path: Path, values: Mapping[str, Sequence[str]]) -> None:
    arrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    with replacing(path) as temporary:
        parquet.write_table(arrow.table({name: list(cells) for name, cells in values.items()}), temporary)


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        remedy = 'install it (pip install "invariance-pair-guidance[parquet]") or write a CSV'
        raise DataError(f"Parquet needs pyarrow; {remedy}") from None
