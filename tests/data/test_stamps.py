import os
import time
import zlib
from pathlib import Path

import pytest

from ipg.data.locations import cache_folder
from ipg.data.stamps import stamp_files


@pytest.fixture
def folder(tmp_path: Path, put) -> Path:
    for name in ("a/1.jpg", "a/2.jpg"):
        put(tmp_path / name, name.encode())
    return tmp_path


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    read = Path.read_bytes

    def watched(path: Path) -> bytes:
        seen.append(path.name)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", watched)
    return seen


def test_a_file_is_read_again_only_when_it_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a/1.jpg", "a/2.jpg"]
    later = time.time_ns() + 10**10
    monkeypatch.setattr(time, "time_ns", lambda: later)  # the files have been left alone for a while
    seen = watch_reads(monkeypatch)
    first = stamp_files(folder, names)
    assert [stamp.crc for stamp in first] == [zlib.crc32(name.encode()) for name in names]
    assert len(seen) == 2
    assert stamp_files(folder, names) == first
    assert len(seen) == 2
    before = (folder / "a/2.jpg").stat()
    (folder / "a/2.jpg").write_bytes(b"a/3.jpg")  # as long as before
    os.utime(folder / "a/2.jpg", ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = stamp_files(folder, names)
    assert changed[0] == first[0]
    assert changed[1] == (7, zlib.crc32(b"a/3.jpg"))


def test_a_file_just_written_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_reads(monkeypatch)
    for _ in range(2):
        stamp_files(folder, ["a/1.jpg"])
    assert len(seen) == 2


@pytest.mark.parametrize("damage", [b"", b"[1]", b"[" * 100_000, b"\xff", b'{"a/1.jpg": 3}'])
def test_a_damaged_record_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 2**62)
    first = stamp_files(folder, ["a/1.jpg"])
    (record,) = (cache_folder() / "stamps").iterdir()
    record.write_bytes(damage)
    assert stamp_files(folder, ["a/1.jpg"]) == first


def test_what_cannot_be_read_is_left_to_decoding(folder: Path) -> None:
    assert stamp_files(folder, ["gone.jpg"]) == [(-1, 0)]


def test_without_a_place_for_the_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 2**62)
    monkeypatch.setenv("IPG_CACHE", str(folder / "a" / "1.jpg"))  # a file is in the way
    assert stamp_files(folder, ["a/2.jpg"])[0].size == 7
