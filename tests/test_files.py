"""Files are whole or not there, whatever happens midway."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from ipg import files
from ipg.files import leftovers, parse_json, replacing, write_json, write_jsonl, write_tensors, write_text


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that is there already."""
    path = tmp_path / "notes.txt"
    path.write_text("old", encoding="utf-8")
    return path


def test_a_file_is_made_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "notes.txt"
    assert write_text(path, "größer") == path
    assert path.read_bytes() == "größer".encode()
    assert entries(path.parent) == ["notes.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_is_replaced(old: Path) -> None:
    with replacing(old) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert temporary.parent == old.parent  # a rename stays on one disk
        assert old.read_text(encoding="utf-8") == "old"
    assert old.read_text(encoding="utf-8") == "new"
    assert entries(old.parent) == ["notes.txt"]


def test_json(tmp_path: Path) -> None:
    value = {"name": "ß", "list": [1, None, 0.1]}
    assert json.loads(write_json(tmp_path / "a.json", value).read_text(encoding="utf-8")) == value
    lines = write_jsonl(tmp_path / "a.jsonl", [value, {"n": 2}]).read_text(encoding="utf-8")
    assert [json.loads(line) for line in lines.split("\n")[:-1]] == [value, {"n": 2}]
    assert lines.endswith("\n")
    assert write_jsonl(tmp_path / "none.jsonl", []).read_bytes() == b""


def break_off(error: BaseException, path: Path) -> None:
    """Write a part, then fail."""
    with replacing(path) as temporary:
        temporary.write_text("ne", encoding="utf-8")
        raise error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_midway_leaves_the_old_file(old: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        break_off(error, old)
    assert old.read_text(encoding="utf-8") == "old"
    assert entries(old.parent) == ["notes.txt"]


def test_what_is_no_json_leaves_the_old_file(old: Path) -> None:
    with pytest.raises(TypeError):
        write_json(old, {"a": object()})
    assert old.read_text(encoding="utf-8") == "old"
    assert entries(old.parent) == ["notes.txt"]


def full(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["writing", "syncing", "renaming"])
def test_a_full_disk_leaves_the_old_file_and_names_it(old: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "writing":

        def write(path: Path, text: str, **options: Any) -> None:
            path.write_bytes(text[:1].encode())  # a part still fits
            full()

        monkeypatch.setattr(Path, "write_text", write)
    elif where == "syncing":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(old, "new")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(old)
    assert str(caught.value) == f"[Errno 28] No space left on device: {str(old)!r}"
    assert old.read_text(encoding="utf-8") == "old"
    assert entries(old.parent) == ["notes.txt"]


def test_what_a_killed_process_leaves_is_found(old: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom ipg.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('ne')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(old)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert old.read_text(encoding="utf-8") == "old"
    (leftover,) = leftovers(old)
    assert leftover.read_text(encoding="utf-8") == "ne"
    assert entries(old.parent) == [leftover.name, "notes.txt"]


def test_only_the_leftovers_of_that_file_are_found(tmp_path: Path) -> None:
    others = [".notes.txt.tmp", ".other.txt.abc.tmp", ".notesXtxt.abc.tmp", "notes.txt.abc.tmp", ".a.abc.tmp", "a"]
    for name in [*others, ".notes.txt.abc.tmp", ".notes.txt.x_.tmp", ".[a].1.tmp"]:
        (tmp_path / name).touch()
    assert {path.name for path in leftovers(tmp_path / "notes.txt")} == {".notes.txt.abc.tmp", ".notes.txt.x_.tmp"}
    assert [path.name for path in leftovers(tmp_path / "[a]")] == [".[a].1.tmp"]
    assert leftovers(tmp_path / "none") == []


@pytest.mark.skipif(files.fcntl is None, reason="there are no locks of this kind")
def test_a_file_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.fcntl is not None
    flock, taken = files.fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not taken:  # somebody else was there between making and locking
            (mine,) = tmp_path.glob(".*.tmp")
            mine.unlink()
            taken.append(mine)
        flock(descriptor, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    write_text(tmp_path / "notes.txt", "kept")
    assert taken
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_json_is_a_value_error_however_deep(text: str) -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(ValueError, match=r"Expecting|nested too deeply"):
        parse_json(text)


def test_tensors_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    """safetensors draws the order of metadata anew: of ten files two would differ, but for one chance in millions."""
    tensors = {"größe": torch.arange(3), "b": torch.ones(2, 2), "nothing": torch.zeros(0), "number": torch.tensor(1.5)}
    metadata = {name: f'{name} "ä"\n' for name in ("format", "structure", "checksum", "mean", "std")}
    orders = [metadata, dict(reversed(metadata.items()))]
    written = {write_tensors(tmp_path / f"{n}.safetensors", tensors, orders[n % 2]).read_bytes() for n in range(10)}
    assert len(written) == 1
    assert int.from_bytes(written.pop()[:8], "little") % 8 == 0
    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert file.metadata() == metadata
        assert sorted(file.keys()) == sorted(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_tensors_without_metadata(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(1)}, {})
    with safe_open(path, framework="pt") as file:
        assert not file.metadata()
        assert file.get_tensor("a").tolist() == [1]
