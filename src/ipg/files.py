"""Files that are either whole or not there: write to a temporary name in the same folder, then rename.

And JSON, as it is written and read.
"""

from __future__ import annotations

import glob
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "SHARED", "jsonl", "leftovers", "make_private", "parse_json", "replacing", "sweep", "write_json", "write_jsonl",
    "write_tensors", "write_text",
]  # fmt: skip

SHARED = "IPG_SHARED"
"""The environment variable that lets the umask say who may enter folders of runs and caches."""

fcntl: ModuleType | None = import_module("fcntl") if find_spec("fcntl") else None
"""Locks of the operating system; None on Windows."""
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
"""What the temporary files of this module are called."""
_swept: set[Path] = set()
"""Folders that this process has looked through."""


def make_private(folder: Path) -> None:
    """Make a folder that its user alone may enter; one that is there is left as it is.

    Folders above it that are missing are made as the umask says, and so is this one where `IPG_SHARED` is set to
    anything but 0.
    """
    shared = os.environ.get(SHARED, "0") not in ("", "0")
    folder.mkdir(mode=0o777 if shared else 0o700, parents=True, exist_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` when the block ends well, and is removed else.

    Who may read it is for the user's umask to say, as for any file that a program makes. Temporary files that killed
    processes have left in the same folder are removed by the first that writes there.

    Raises:
        OSError: it could not be written; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with _held(temporary):
                sweep(path.parent, once=True)
                yield temporary
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Make a file and lock it: the lock goes when the process does, and tells what is written from what was left."""
    descriptor = _make(temporary)
    try:
        if fcntl is None:  # a file that is open cannot be renamed there
            os.close(descriptor)
        yield
    finally:
        if fcntl is not None:
            os.close(descriptor)


def _make(temporary: Path) -> int:
    """A new file, locked where there are locks; made again where it was swept away before it was locked."""
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks: what is left there stays
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:
                os.close(descriptor)
                continue
        return descriptor


def sweep(folder: Path, *, once: bool = False) -> None:
    """Remove the temporary files in `folder` that no process is writing; with `once`, a second call does nothing."""
    if fcntl is None or (once and folder.absolute() in _swept):
        return
    _swept.add(folder.absolute())
    for temporary in [path for path in folder.glob(".*.tmp") if TEMPORARY.fullmatch(path.name)]:
        with suppress(OSError):  # gone meanwhile, being written, or somebody else's
            descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink()
            finally:
                os.close(descriptor)


def leftovers(path: Path) -> list[Path]:
    """The temporary files of `path`: of a process that is writing it now, or left by killed ones."""
    return list(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def parse_json(text: str) -> Any:
    """The value in a JSON text; ValueError where it is none, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, value: Any) -> Path:
    """Write `value` as JSON, whole or not at all."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `rows`, one a line, whole or not at all."""
    return write_text(path, jsonl(rows))


def jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    """The text of `rows`, one a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Write safetensors, whole or not at all; the bytes are a function of tensors and metadata alone.

    safetensors writes the metadata in an order that is another each time.
    """
    from safetensors.torch import save

    data = memoryview(save(dict(tensors), metadata=dict(metadata)))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:end]))
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # where tensors begin is a multiple of it
    with replacing(path) as temporary, temporary.open("wb") as file:  # not save_file, which makes files of its own
        for part in (len(text).to_bytes(8, "little"), text, data[end:]):
            file.write(part)
    return path
