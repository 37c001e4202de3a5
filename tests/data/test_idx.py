import gzip
import struct
from pathlib import Path

import pytest
import torch

from ipg.data import idx as module
from ipg.data.errors import DataError
from ipg.data.idx import read_idx


def idx(*shape: int, body: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


GOOD = idx(2, 3, body=bytes(range(6)))
ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize("data", [GOOD, ZIPPED], ids=["plain", "gzip"])
def test_reads_plain_and_gzipped_whatever_the_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some-file"
    path.write_bytes(data)
    values = read_idx(path)
    assert values.dtype == torch.uint8
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no idx file of bytes: it begins with nothing"),
        (b"\x89PNG\r\n", "no idx file of bytes: it begins with 89504e47"),
        (bytes([0, 0, 13, 1]) + struct.pack(">I", 1) + bytes(4), "no idx file of bytes"),  # floats
        (GOOD[:9], "its header ends after 9 of 12 bytes"),
        (GOOD[:-1], "its header states 2 x 3 bytes, 5 follow"),
        (GOOD + b"\0", "its header states 2 x 3 bytes, 7 follow"),
        (idx(0, 3, body=b""), "is empty"),
        (ZIPPED[:-9], "cannot be read"),
        (ZIPPED[:12] + b"\xff\xff" + ZIPPED[14:], "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_small_file_that_unpacks_to_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx(2000, body=bytes(2000))))
    with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
        read_idx(path)
    path.write_bytes(gzip.compress(idx(900, body=bytes(900))))
    assert read_idx(path).shape == (900,)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_idx(tmp_path / "nothing")
