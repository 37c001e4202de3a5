"""The idx format of MNIST and its kin: a magic number, the sizes, then the bytes."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ipg.data.errors import DataError

__all__ = ["read_idx"]

MOST_BYTES = 256 << 20
"""What a gzipped file may unpack to: MNIST has 47 million bytes."""
_GZIP = b"\x1f\x8b"
_UINT8 = 0x08


def read_idx(path: str | PathLike[str]) -> Tensor:
    """Read an idx file of bytes, plain or gzipped, into a uint8 tensor of the shape it states."""
    data = _read_bytes(Path(path))
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UINT8 or data[3] == 0:
        raise DataError(
            f"{path} is no idx file of bytes: it begins with {data[:4].hex() or 'nothing'}, expected 000008…; "
            f"get the file again"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{path} is truncated: its header ends after {len(data)} of {start} bytes; get the file again")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) != start + math.prod(shape):
        raise DataError(
            f"{path} is truncated or corrupt: its header states {' x '.join(map(str, shape))} bytes, "
            f"{len(data) - start} follow; get the file again"
        )
    if 0 in shape:
        raise DataError(f"{path} is empty: its header states {' x '.join(map(str, shape))} bytes")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(shape)


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if not data.startswith(_GZIP):
            return data
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(unpacked) > MOST_BYTES:
        raise DataError(f"{path} unpacks to more than {MOST_BYTES:,} bytes: it is not MNIST")
    return unpacked
