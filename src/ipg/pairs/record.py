"""How the pairs of a folder were made: `build.json` beside the manifest, which also says whose folder it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipg.data.errors import DataError
from ipg.data.names import is_own
from ipg.files import leftovers, parse_json, write_json
from ipg.pairs.rows import NAMES

__all__ = ["RECORD", "SHARED", "claim", "placed", "read_record", "size_of"]

RECORD = "build.json"
"""The file beside a manifest that says how it was made."""
SHARED = ("data", "size", "seed", "split_seed", "path_column", "label_column", "attribute_column")
"""What the pairs of both splits in a folder have in common."""


def read_record(folder: Path) -> dict[str, dict[str, Any]]:
    """How the pairs of each split in a folder were made: `settings`, and a digest of the rows as `pairs`."""
    path = folder / RECORD
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise DataError(f"{path} cannot be read; delete it, and name the data with --data") from None
    if not isinstance(record, dict) or not all(
        isinstance(one, dict) and isinstance(one.get("settings"), dict) for one in record.values()
    ):
        raise DataError(f"{path} does not say how pairs were made; delete it, and name the data with --data")
    return record


def size_of(folder: Path, split: str) -> int | None:
    """The side of the images that the pairs of `split` were made of; None where the folder does not say."""
    with suppress(DataError):  # who asks needs nothing else of the file
        size = read_record(folder).get(split, {}).get("settings", {}).get("size")
        return size if isinstance(size, int) else None
    return None


def placed(data: str) -> str:
    """Data as a record keeps it: a path in full, so that it is found from any folder, a name as it is."""
    path = Path(data).expanduser()
    return str(path.absolute()) if is_own(data) and path.exists() else data


def claim(folder: Path, split: str, settings: Mapping[str, Any], digest: str) -> None:
    """Take the folder for pairs of `split`, or go on with them.

    Raises:
        DataError: it holds something else, or pairs that were made otherwise.
    """
    try:
        record = read_record(folder)
    except DataError:
        raise DataError(f"{folder} holds a {RECORD} that is not of pairs; name another --output") from None
    if not record:
        _check_empty(folder)
    for other, one in record.items():
        before, now = _comparable(one["settings"]), _comparable(settings)
        names = sorted({*one["settings"], *settings} - {"data_path"})
        names = [name for name in names if name in SHARED] if other != split else names
        if differing := [
            f"{name} {before.get(name)}, now {now.get(name)}" for name in names if before.get(name) != now.get(name)
        ]:
            said = "; ".join(differing)
            raise DataError(f"{folder} holds {other} pairs that were made otherwise ({said}); name another --output")
    if split not in record:
        write_json(folder / RECORD, record | {split: {"settings": dict(settings), "pairs": digest}})
    elif record[split].get("pairs") != digest:
        raise DataError(f"{folder} holds pairs of other images: the data has changed since; name another --output")


def _check_empty(folder: Path) -> None:
    """DataError where the folder holds anything: the record is the first thing that is written to one of pairs."""
    if any((folder / name).exists() for name in NAMES):
        raise DataError(f"{folder} holds pairs already; name another --output")
    own = {leftover.name for leftover in leftovers(folder / RECORD)}
    found = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    if strangers := [name for name in found if name not in own]:
        raise DataError(
            f"{folder} is not empty and not a folder of pairs (it holds {strangers[0]}); name another --output"
        )


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they would be written today: paths in full, and the seed as what drew the split."""
    known = {"split_seed": settings.get("seed"), **settings}
    return known | ({"data": placed(known["data"])} if isinstance(known.get("data"), str) else {})
