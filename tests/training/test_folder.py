"""The folder of a run: who may use it, and what is read back from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ipg.training.checkpoint import load_checkpoint
from ipg.training.folder import FolderError, RunFolder, read_json

IDENTITY: dict[str, dict[str, Any]] = {"config": {"epochs": 3, "margin": 0.1}, "data": {"table": "abc", "pairs": None}}
ORIGIN = {"origin": {"commit": "1234"}}


def entries(folder: Path) -> set[str]:
    """What is in `folder`, but the lock: some versions of filelock delete it when they let go."""
    return {path.name for path in folder.iterdir()} - {"lock"}


def changed(part: str, **values: Any) -> dict[str, dict[str, Any]]:
    return IDENTITY | {part: {key: v for key, v in (IDENTITY[part] | values).items() if v != "gone"}}


@pytest.fixture
def home(tmp_path: Path) -> RunFolder:
    """The folder of a run that has begun."""
    made = RunFolder(tmp_path / "runs" / "one")
    with made.claim(IDENTITY, ORIGIN):
        made.save({"step": 3}, [{"epoch": 1}])
    return made


def test_a_new_folder_says_what_it_is(home: RunFolder) -> None:
    assert read_json(home.config) == {**IDENTITY, **ORIGIN}
    assert entries(home.path) == {"config.json", "checkpoint.safetensors", "metrics.jsonl"}


def test_the_same_run_goes_on_and_its_origin_stays(home: RunFolder) -> None:
    with home.claim(IDENTITY, {"origin": {"commit": "another"}}):
        assert home.load() == {"step": 3}
    assert read_json(home.config)["origin"] == {"commit": "1234"}


def test_a_run_from_before_an_option_goes_on_with_its_default(tmp_path: Path) -> None:
    home = RunFolder(tmp_path / "runs")
    with home.claim(changed("config", method="dfr", draws=10), ORIGIN):
        home.save({"step": 3}, [{"epoch": 1}])
    with home.claim(changed("config", method="dfr", draws=10, share=1.0, standardised=True), ORIGIN):
        assert home.load() == {"step": 3}
    other = changed("config", method="dfr", draws=10, share=0.5, standardised=True)
    with pytest.raises(FolderError, match=r"share was 1\.0 and is now 0\.5"), home.claim(other, ORIGIN):
        pytest.fail("admitted")


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (changed("config", epochs=4), "epochs was 3 and is now 4"),
        (changed("config", order="sum"), "order was None and is now 'sum'"),
        (changed("config", margin="gone"), "margin was 0.1 and is now None"),
        (changed("data", table="xyz"), "images or labels have changed since it began"),
        (changed("data", pairs="xyz"), "pairs have changed since it began"),
        (
            changed("data", pairs="xyz", held_out_pairs="xyz"),
            "pairs and held-out pairs have changed since it began",
        ),
        (changed("config", epochs=4, margin="0.5x"), "epochs was 3 and is now 4; margin was 0.1 and is now '0.5x'"),
    ],
)
def test_another_run_is_refused_and_all_differences_named(home: RunFolder, identity: Any, message: str) -> None:
    before = {path.name: path.read_bytes() for path in home.path.iterdir()}
    with pytest.raises(FolderError) as caught, home.claim(identity, ORIGIN):
        pytest.fail("admitted")
    further = f" To train it further, go on from it in another: --from {home.path}."
    end = further if message == "epochs was 3 and is now 4" else ""
    text = f"{home.path} holds another run: {message}. Name another folder, or delete this one.{end}"
    assert str(caught.value) == text
    assert {path.name: path.read_bytes() for path in home.path.iterdir()} == before


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder beside one with files, and here."""
    for name in ("shapes/photos.csv", "mine.pth", "colored_fashion/photos.csv"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).touch()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    return tmp_path / "other"


PLACES = {"data": "shapes/photos.csv", "weights": "mine.pth", "pairs": "shapes", "start": "timm:resnet18@mine.pth"}


def placed(folder: Path, settings: dict[str, str], spelt: Any) -> dict[str, Any] | None:
    """Begin a run in the folder `project`, and take it up again from here with its files spelt otherwise: its state."""
    home = RunFolder(folder.parent / "runs")
    with home.claim(changed("config", **settings), {"origin": {"started_in": str(folder.parent / "project")}}):
        home.save({"step": 3}, [{"epoch": 1}])
    with home.claim(changed("config", **spelt), ORIGIN):
        return home.load()


@pytest.mark.parametrize("start", ["../project/", "{}/project/", "../other/../project/./"])
def test_files_may_be_spelt_otherwise_when_a_run_goes_on(elsewhere: Path, start: str) -> None:
    before = start.format(elsewhere.parent)
    spelt = {name: before + file for name, file in PLACES.items()} | {"start": f"timm:resnet18@{before}mine.pth"}
    assert placed(elsewhere, PLACES, spelt) == {"step": 3}


@pytest.mark.parametrize(
    ("settings", "spelt"),
    [
        ({"data": "shapes/photos.csv"}, {"data": "photos.csv"}),  # which is not there
        ({"data": "shapes/photos.csv"}, {"data": "../project/colored_fashion/photos.csv"}),
        ({"data": "colored_fashion"}, {"data": "../project/colored_fashion"}),  # the embedded images, and a folder
        ({"start": "timm:resnet18@mine.pth"}, {"start": "timm:resnet34@../project/mine.pth"}),
        ({"pairs": "shapes"}, {"pairs": 40}),
        ({"model": "shapes"}, {"model": "../project/shapes"}),
    ],
)
def test_other_files_are_another_run(elsewhere: Path, settings: dict[str, str], spelt: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(FolderError, match=f"{name} was '{settings[name]}' and is now"):
        placed(elsewhere, settings, spelt)


@pytest.mark.parametrize("done", [False, True])
def test_a_run_that_never_got_anywhere_gives_way(home: RunFolder, done: bool) -> None:
    if done:
        home.finish({"w": torch.ones(1)}, [{"epoch": 1}], {})
    home.checkpoint.unlink()
    other = changed("config", epochs=4)
    if done:  # its result is there, and the checkpoint no longer needed
        with pytest.raises(FolderError, match="epochs was 3 and is now 4"):
            home.claim(other, ORIGIN).__enter__()
    else:
        with home.claim(other, {"origin": {"commit": "5678"}}):
            assert read_json(home.config) == {**other, "origin": {"commit": "5678"}}


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderError, match=r"is not empty and not a run folder \(it holds thesis.tex\); name another"):
        RunFolder(tmp_path).claim(IDENTITY, ORIGIN).__enter__()
    assert entries(tmp_path) == {"thesis.tex"}


@pytest.mark.parametrize("content", [{"architectures": ["ViT"]}, {"config": 3, "data": {}}, {"config": {}}])
def test_a_configuration_of_something_else_is_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FolderError, match=r"config\.json is not of a run; name another folder"):
        RunFolder(tmp_path).claim(IDENTITY, ORIGIN).__enter__()
    assert read_json(tmp_path / "config.json") == content
    assert entries(tmp_path) == {"config.json"}


def test_an_empty_folder_and_a_report_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    with RunFolder(tmp_path).claim(IDENTITY, ORIGIN):
        pass
    assert entries(tmp_path) == {"report.html", "config.json"}


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_kill_left_is_cleared_away(home: RunFolder, begun: bool) -> None:
    if not begun:  # killed while the first file was written
        for path in home.path.iterdir():
            path.unlink()
    for name in (".config.json.a1.tmp", ".checkpoint.safetensors.b2.tmp", ".metrics.jsonl.c3.tmp", ".done.d4.tmp"):
        (home.path / name).touch()
    with home.claim(IDENTITY, ORIGIN):
        assert not [name for name in entries(home.path) if name.endswith(".tmp")]


def test_a_folder_in_use_is_refused(home: RunFolder) -> None:
    with home.claim(IDENTITY, ORIGIN), pytest.raises(FolderError, match="is in use by another process"):
        RunFolder(home.path).claim(IDENTITY, ORIGIN).__enter__()
    with RunFolder(home.path).claim(IDENTITY, ORIGIN):
        pass


def test_a_folder_in_use_by_another_process_is_refused(home: RunFolder) -> None:
    code = (
        "import sys\nfrom filelock import FileLock\nlock = FileLock(sys.argv[1])\nlock.acquire()\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(home.path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FolderError, match="is in use by another process"):
            home.claim(IDENTITY, ORIGIN).__enter__()
        other.kill()  # the system takes the lock back from a killed process
        other.wait()
    with home.claim(IDENTITY, ORIGIN):
        pass


def test_the_lock_is_given_back_when_a_run_fails(home: RunFolder) -> None:
    with pytest.raises(RuntimeError, match="a bug"), home.claim(IDENTITY, ORIGIN):
        raise RuntimeError("a bug")
    with home.claim(IDENTITY, ORIGIN):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"config": ', "config.json is damaged and cannot be read"),
        (b"\xff\xfe", "config.json is damaged and cannot be read"),
        (b"[1, 2]", "config.json is damaged: expected an object, got a list"),
    ],
)
def test_a_damaged_configuration(home: RunFolder, content: bytes, message: str) -> None:
    home.config.write_bytes(content)
    with pytest.raises(FolderError, match=message):
        home.claim(IDENTITY, ORIGIN).__enter__()


def test_a_file_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.touch()
    with pytest.raises(FileExistsError):
        RunFolder(path).claim(IDENTITY, ORIGIN).__enter__()


def test_no_json_file(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"there is no .*result.json"):
        read_json(tmp_path / "result.json")


def test_a_finished_run_is_read_back(home: RunFolder) -> None:
    assert home.finished() is None
    weights = {"head.weight": torch.rand(2, 3)}
    rows = [{"epoch": 1, "name": "ß\u2028"}, {"epoch": 2, "share": 0.1}]
    home.finish(weights, rows, {"seconds": 3})
    home.checkpoint.unlink()  # large, and no longer needed
    found = home.finished()
    assert found is not None
    assert torch.equal(found[0]["head.weight"], weights["head.weight"])
    assert found[1:] == (rows, {"seconds": 3})
    assert torch.equal(load_checkpoint(home.model)["head.weight"], weights["head.weight"])


def test_without_its_marker_a_run_is_not_done(home: RunFolder) -> None:
    home.finish({"w": torch.ones(1)}, [{"epoch": 1}], {})
    home.done.unlink()
    assert home.finished() is None


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).load() is None
