"""Files of NumPy arrays: a small one must not unpack to a large one, and why one cannot be read."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["array_trouble", "check_npz"]

MANY_BYTES = 256 << 20
"""What arrays may unpack to in any case."""
MOST_TIMES = 100
"""How many times its packed size a larger one may have: images and features have a few times theirs."""


def check_npz(path: Path) -> None:
    """ValueError where an array of an .npz would unpack to many times its size; files of one array pass."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > max(MANY_BYTES, MOST_TIMES * member.compress_size):
                raise ValueError(
                    f"{member.filename} would unpack from {member.compress_size:,} to {member.file_size:,} bytes"
                )


def array_trouble(error: Exception) -> str:
    """Why a file of NumPy cannot be read, without the advice to run what is in it."""
    if "pickle" in str(error):
        return "it holds Python objects, which are not read since that could run code"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
