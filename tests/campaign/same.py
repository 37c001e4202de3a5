"""Whether two folders hold the same results: all but when and how fast they were made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["content", "difference"]

LOCK, STAMPS = re.compile(r"(^|\.)lock$"), re.compile(r"(^|/)stamps/\w+\.json$")

OF_THE_MOMENT = {"seconds", "preparing_seconds", "date", "commit", "started_in"}
"""What a record says that is another every time, or in every place."""


def difference(folder: Path, expected: Path) -> str | None:
    """What is in one and not in the other, or differs; None where they hold the same."""
    names, wanted = _names(folder), _names(expected)
    if strangers := sorted(names - wanted):
        return f"{strangers[0]} should not be there"
    if missing := sorted(wanted - names):
        return f"{missing[0]} is missing"
    for name in sorted(names):
        try:
            one, other = (content(place / name) for place in (folder, expected))
        except ValueError as error:
            return f"{name} is not whole: {error}"
        if one != other:
            return f"{name} differs"
    return None


def _names(folder: Path) -> set[str]:
    """All files but locks, and the record of checksums, which is made when files have been left alone for a while."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {str(file) for file in files if not (LOCK.search(file.name) or STAMPS.search(str(file)))}


def content(path: Path) -> Any:
    """What a file says for good."""
    return READERS.get(path.suffix, Path.read_bytes)(path)


def _tensors(path: Path) -> dict[str, bytes]:
    from safetensors.numpy import load_file

    return {name: value.tobytes() for name, value in load_file(path).items()}


def _rows(path: Path) -> list[Any]:
    """In the order of their keys, where they have any; every line has to be one."""
    rows = [_lasting(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: str(row.get("key", "")))


def _lasting(value: Any) -> Any:
    """Without what is of the moment; means over the ranks of a run to six digits, as they depend on when they meet."""
    if isinstance(value, dict):
        kept = {name: _lasting(item) for name, item in value.items() if name not in OF_THE_MOMENT}
        return kept | {name: _rounded(item) for name, item in kept.items() if name == "train"}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return float(f"{value:.5e}") if isinstance(value, float) else value


def _lines(path: Path) -> list[str]:
    """Without those that say when and how."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _tensors,
    ".jsonl": _rows,
    ".json": lambda path: _lasting(json.loads(path.read_text(encoding="utf-8"))),
    ".toml": _lines,
    ".html": lambda path: re.sub(r"<dt>(date|commit)</dt><dd>.*?</dd>", "", path.read_text(encoding="utf-8")),
    ".journal": lambda path: None,  # its order is that of the processes; the trials in it are looked at elsewhere
    "": lambda path: None,  # the marker of a finished run: digests of files that say when they were made
}
"""How files are read whose bytes differ for good reasons."""
