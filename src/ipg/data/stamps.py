"""Size and checksum of files: what a cache is keyed by. A file is read again only when its size or times change."""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ipg.data.locations import cache_folder
from ipg.data.parallel import in_order
from ipg.files import make_private, parse_json, write_text

__all__ = ["Stamp", "stamp_files"]

_SETTLED = 2_000_000_000
"""Nanoseconds that a file must have been left alone before its times are trusted."""


class Stamp(NamedTuple):
    """What a file's content is known by."""

    size: int
    crc: int


def stamp_files(folder: Path, names: Sequence[str]) -> list[Stamp]:
    """The stamps of files in `folder`, from the record of an earlier call where nothing has changed since."""
    record = cache_folder() / "stamps" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:20]}.json"
    known = _read_record(record)
    now = time.time_ns()

    def stamp(name: str) -> tuple[list[int], bool]:
        """Size, times and checksum, and whether they may be recorded."""
        path = folder / name
        try:
            status = path.stat()
            facts = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            old = known.get(name)
            if isinstance(old, list) and len(old) == 4 and old[:3] == facts:
                return old, False
            return [*facts, zlib.crc32(path.read_bytes())], max(facts[1:]) < now - _SETTLED
        except OSError:
            return [-1, 0, 0, 0], False  # decoding will say why

    found = list(in_order(stamp, names))
    fresh = {name: facts for name, (facts, settled) in zip(names, found, strict=True) if settled}
    if fresh:
        with suppress(OSError):  # without a record the files are read again next time
            make_private(cache_folder())
            make_private(record.parent)
            write_text(record, json.dumps({**known, **fresh}))
    return [Stamp(facts[0], facts[3]) for facts, _ in found]


def _read_record(path: Path) -> dict[str, Any]:
    try:
        known = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
