"""Files of NumPy arrays, of which a small one must not unpack to a large one."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["check_npz"]

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
