"""Files that are either whole or not there: write to a temporary name in the same folder, then rename."""

from __future__ import annotations

import glob
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["leftovers", "replacing", "write_json", "write_jsonl", "write_text"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` when the block ends well, and is removed else.

    Who may read it is for the user's umask to say, as for any file that a program makes.

    Raises:
        OSError: it could not be written; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def leftovers(path: Path) -> list[Path]:
    """The temporary files of `path`: of a process that is writing it now, or left by killed ones."""
    return list(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write `value` as JSON, whole or not at all."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `rows`, one a line, whole or not at all."""
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
