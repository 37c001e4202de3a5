"""The data set that a folder of pairs belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ipg.data.errors import DataError
from ipg.data.folder import is_table
from ipg.data.listing import Listing
from ipg.data.load import list_files, load
from ipg.data.names import is_own
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.pairs.record import RECORD, placed, read_record
from ipg.whereabouts import find_data, find_file

__all__ = ["Data", "load_data", "open_data"]


@dataclass(frozen=True)
class Data:
    """A data set in memory, and its files where it has some."""

    table: ImageTable
    listing: Listing | None

    @property
    def home(self) -> Path | None:
        """The folder of its files, where it has some."""
        return None if self.listing is None else Path(self.listing.source.place)


def load_data(name: str, path: str | None, size: int | None, seed: int, reading: Reading | None = None) -> Data:
    """A data set by name."""
    listing = list_files(name, path=path, reading=reading)
    if listing is None:
        return Data(load(name, path=path, size=size, seed=seed), None)
    return Data(listing.table(size), listing)


def open_data(
    folder: Path,
    name: str | None,
    path: str | None,
    size: int | None = None,
    *,
    columns: Mapping[str, str | None] = MappingProxyType({}),
) -> Data | None:
    """The data set of the pairs in `folder`: the one named, else the one they were made from; None where none is.

    Its images have the side `size`, else the one that the pairs were made at. `columns` are settings of `Reading`, None
    for those that were not given.
    """
    given: dict[str, Any] = {role: column for role, column in columns.items() if column is not None}
    record: dict[str, Any] = next((one["settings"] for one in read_record(folder).values()), {})
    known = _found(record.get("data"), folder)
    if not (name or known):
        return None
    if name and not (known and _same(name, known)):
        return load_data(name, path, size, 0, Reading(**given))
    wanted, place = find_data(name or str(known), record.get("data_path"), run=folder / RECORD, given=path)
    is_path = is_own(wanted) and ("/" in wanted or "\\" in wanted)
    if is_path and (place is None or is_table(wanted)) and not Path(wanted).expanduser().exists():
        raise DataError(f"{folder / RECORD}: the pairs are of {wanted}, which is not there; say where with --data")
    reading = replace(Reading.kept(record), **given)
    return load_data(wanted, place, size or record.get("size"), int(record.get("seed", 0)), reading)


def _found(data: Any, folder: Path) -> str | None:
    """The data that a record names; a path is looked for from here and above the pairs, which it may have moved with.

    Of a path in full its longest end that is there counts, of two names or more: one alone may be another project's.
    """
    if not isinstance(data, str) or not data:
        return None
    path = Path(data)
    if not is_own(data) or (path.is_absolute() and path.exists()):
        return data
    if not path.is_absolute():
        return find_file(data, run=folder / RECORD)
    ends = [Path(*path.parts[first:]) for first in range(1, len(path.parts) - 1)]
    above = (folder / RECORD).resolve().parents
    return next((str(place / end) for end in ends for place in above if (place / end).exists()), data)


def _same(name: str, known: str) -> bool:
    """Whether `name` is the data that the pairs were made from, there or where it has moved to."""
    moved = is_own(name) and is_own(known) and not Path(known).exists() and Path(name).name == Path(known).name
    return moved or placed(name) == placed(known)
