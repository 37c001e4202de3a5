"""Nothing is written where it should not be, nor for more eyes than the user's umask allows."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from ipg.cli import app
from ipg.data.errors import DataError
from ipg.data.sources import FolderSource, ZipSource, open_source
from ipg.files import write_text


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_are_for_whom_the_umask_says(umask: int, tmp_path: Path) -> None:
    made = write_text(tmp_path / "a" / "b.txt", "text")
    assert stat.S_IMODE(made.stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o777 & ~umask


def test_a_file_that_is_being_written_is_for_no_more(umask: int, tmp_path: Path) -> None:
    from ipg.files import replacing

    with replacing(tmp_path / "b.txt") as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(("shared", "mode"), [(None, 0o700), ("0", 0o700), ("1", 0o755)])
def test_folders_of_runs_and_caches_are_for_the_user_alone_unless_shared(
    make_table: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str | None, mode: int
) -> None:
    """Under the usual umask, which lets everybody read."""
    from ipg.data.load import DATASETS

    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IPG_SHARED", raising=False)
    if shared is not None:
        monkeypatch.setenv("IPG_SHARED", shared)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / label / "1.png")
    (tmp_path / "there").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        for method, name in (("jtt", "new/run"), ("erm", "there")):  # the first has a run before it, inside
            done = CliRunner().invoke(app, ["train", "--data", "bars", "--epochs", "1", "--method", method,
                "--held-out-pairs", "8", "--output", str(tmp_path / name)])  # fmt: skip
            assert done.exit_code == 0, done.output
        assert CliRunner().invoke(app, ["data", "check", str(tmp_path / "photos"), "--size", "8"]).exit_code == 0
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in
             ("new", "new/run", "new/run/first_stage", "there", "cache", "cache/images")}  # fmt: skip
    assert modes.pop("new") == 0o755
    assert modes.pop("there") == 0o755  # which was there
    assert modes == dict.fromkeys(modes, mode)


def test_a_run_and_its_caches_are_for_the_user_alone(
    make_table: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.data.load import DATASETS

    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    photos = tmp_path / "photos"
    for label in ("cat", "dog"):
        (photos / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(photos / label / "1.png")
    (tmp_path / "mine").mkdir()
    before = os.umask(0o077)
    try:
        done = CliRunner().invoke(app, ["train", "--data", "bars", "--epochs", "1", "--pairs", "8",
            "--held-out-pairs", "8", "--output", str(tmp_path / "mine" / "run")])  # fmt: skip
        assert done.exit_code == 0, done.output
        assert CliRunner().invoke(app, ["data", "check", str(photos), "--size", "8"]).exit_code == 0
    finally:
        os.umask(before)
    made = [*(tmp_path / "mine" / "run").rglob("*"), *(tmp_path / "cache").rglob("*")]
    assert {path.suffix for path in made} >= {".json", ".jsonl", ".safetensors", ".u8"}
    assert [path for path in made if path.stat().st_mode & 0o077] == []


# -- archives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x.png", "a/../../x.png", "/x.png", "..\\x.png", "a/\0../x.png"])
def test_names_do_not_lead_out_of_the_data(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    (tmp_path / "data" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="is not inside"):
        FolderSource(tmp_path / "data").find(name)


@pytest.fixture
def climbing(tmp_path: Path) -> Path:
    """An archive of two classes whose names climb, with a link among its entries."""
    path = tmp_path / "data" / "all.zip"
    path.parent.mkdir()
    picture = tmp_path / "p.png"
    Image.new("RGB", (8, 8)).save(picture)
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../cat/x.png", "../../dog/x.png", "/tmp/ipg-climbed/x.png", "cat/1.png", "dog/1.png"):
            archive.writestr(zipfile.ZipInfo(name), picture.read_bytes() + name.encode())
        link = zipfile.ZipInfo("dog/link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    picture.unlink()
    return path


def test_archives_are_read_and_never_unpacked(climbing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    before = set(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, ["data", "check", str(climbing), "--size", "8"])
    assert done.exit_code == 1
    assert "dog/link.png: it is no image" in done.output  # a link is the text that it holds
    assert "root:" not in done.output
    made = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")} - before
    assert made == set()
    assert not Path("/tmp/ipg-climbed").exists()


def test_names_do_not_steer_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    for label in ("cat\x1b[2J", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        (tmp_path / "data" / label / "\x1b]0;owned\x07.png").write_text("no image")
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path / "data"), "--size", "8"])
    assert done.exit_code == 1
    assert "dog/\\x1b]0;owned\\x07.png: it is no image" in done.output
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


def test_a_link_in_an_archive_leads_nowhere(climbing: Path) -> None:
    assert ZipSource([climbing]).read("dog/link.png") == b"/etc/passwd"
    assert isinstance(open_source(climbing), ZipSource)
