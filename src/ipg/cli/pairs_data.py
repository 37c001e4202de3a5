"""The data set that a folder of pairs belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipg.data.listing import Listing
from ipg.data.load import list_files, load
from ipg.data.table import ImageTable
from ipg.pairs.plan import read_record

__all__ = ["Data", "load_data", "open_data"]


@dataclass(frozen=True)
class Data:
    """A data set in memory, and its files where it has some."""

    table: ImageTable
    listing: Listing | None


def load_data(name: str, path: str | None, size: int | None, seed: int) -> Data:
    """A data set by name."""
    listing = list_files(name, path=path, seed=seed)
    if listing is None:
        return Data(load(name, path=path, size=size, seed=seed), None)
    return Data(listing.table(size), listing)


def open_data(folder: Path, name: str | None, path: str | None) -> Data | None:
    """The data set of the pairs in `folder`: the one named, else the one they were made from; None where none is."""
    record: dict[str, Any] = next((one["settings"] for one in read_record(folder).values()), {})
    wanted = name or record.get("data")
    if not wanted:
        return None
    same = wanted == record.get("data")
    place = path or (record.get("data_path") if same else None)
    return load_data(wanted, place, record.get("size") if same else None, int(record.get("seed", 0)) if same else 0)
