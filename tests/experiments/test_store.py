"""Rows and trial folders: nothing lost, nothing doubled, whoever else is at work and whenever one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ipg.experiments.store import Store, read_rows


def row(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "name": "ß\u2028", **more}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_no_rows_yet(store: Store) -> None:
    assert read_rows(store.rows) == []
    assert store.done() == set()
    assert not store.trials.exists()


def test_rows_are_kept_once(store: Store, tmp_path: Path) -> None:
    for key in ("a", "b", "a"):
        store.finish(row(key, number=len(read_rows(store.rows))))
    Store(tmp_path).finish(row("b"))
    assert read_rows(store.rows) == [row("a", number=0), row("b", number=1)]


def test_rows_of_others_are_seen(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path)
    assert store.done() == set()
    other.finish(row("a"))
    assert store.done() == {"a"}
    other.finish(row("b"))
    assert store.done() == {"a", "b"}


def test_rows_that_are_taken_out_are_missing_again(store: Store) -> None:
    for key in ("a", "b"):
        store.finish(row(key))
    assert store.done() == {"a", "b"}
    store.rows.write_text(json.dumps(row("b")) + "\n", encoding="utf-8")
    assert store.done() == {"b"}


def test_rows_of_another_split_do_not_count(tmp_path: Path) -> None:
    """The trial is the same, what its row reports is not."""
    searched, tested = Store(tmp_path, "search"), Store(tmp_path, "test")
    searched.finish(row("a", split="search"))
    assert (searched.done(), tested.done(), Store(tmp_path).done()) == ({"a"}, set(), {"a"})
    tested.finish(row("a", split="test"))
    tested.finish(row("a", split="test"))
    assert read_rows(tested.rows) == [row("a", split="search"), row("a", split="test")]
    assert tested.done() == {"a"}


@pytest.mark.parametrize("cut", [1, 2, 5, 12, 20])
def test_a_line_cut_by_a_kill(tmp_path: Path, cut: int) -> None:
    """Also inside a letter of two bytes; a line that lacks its end alone is whole."""
    store = Store(tmp_path)
    for key in ("a", "b"):
        store.finish(row(key))
    store.rows.write_bytes(store.rows.read_bytes()[:-cut])
    expected = {"a", "b"} if cut == 1 else {"a"}
    for reader in (store, Store(tmp_path)):
        assert reader.done() == expected
    for key in ("b", "c"):
        store.finish(row(key))
    assert read_rows(store.rows) == [row("a"), row("b"), row("c")]
    assert store.done() == Store(tmp_path).done() == {"a", "b", "c"}


def test_other_lines_are_no_rows(store: Store) -> None:
    store.rows.write_text('3\n{"name": "keyless"}\n\nnull\n{"key": "a"}\n', encoding="utf-8")
    assert store.done() == {"a"}
    assert read_rows(store.rows) == [{"name": "keyless"}, {"key": "a"}]


WRITER = """
import sys
from pathlib import Path
from ipg.experiments.store import Store

first, results = int(sys.argv[1]), Path(sys.argv[2])
store = Store(results)
for number in range(first, first + 40):
    store.finish({"key": str(number), "filler": "x" * 20_000})
"""


def test_many_processes_write_whole_rows(tmp_path: Path) -> None:
    """Three at once, half of whose keys each shares with another."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(first), str(tmp_path)]) for first in (0, 20, 40)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    lines = (tmp_path / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(int(json.loads(line)["key"]) for line in lines) == list(range(80))


# -- trials ----------------------------------------------------------------------------------------------------------


def test_a_trial_is_held_by_one(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path)
    assert not other.is_held("a")
    with store.claim("a") as mine:
        assert mine
        assert other.is_held("a")
        with other.claim("a") as theirs, other.claim("b") as another:
            assert (theirs, another) == (False, True)
        assert other.is_held("a")
    assert not other.is_held("a")
    with other.claim("a") as mine:
        assert mine


HOLDER = """
import sys, time
from pathlib import Path
from ipg.experiments.store import Store

with Store(Path(sys.argv[1])).claim("a") as mine:
    print(mine, flush=True)
    time.sleep(300)
"""


def test_a_killed_process_lets_go(store: Store, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert store.is_held("a")
        process.kill()
    assert not store.is_held("a")


def files(store: Store, key: str, *names: str) -> Path:
    run = store.trials / key / "run"
    run.mkdir(parents=True, exist_ok=True)
    for name in names:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).touch()
    return run


def held(folder: Path) -> set[str]:
    """All files in a folder and below."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


LIGHT = ("config.json", "metrics.jsonl", "result.json", "done")
HEAVY = ("checkpoint.safetensors", "model.safetensors")


def test_after_its_row_a_trial_keeps_a_light_record(store: Store) -> None:
    run = files(store, "a", *LIGHT, *HEAVY)
    store.fail("a", "Traceback")
    assert store.error_file("a").read_text(encoding="utf-8") == "Traceback"
    store.finish(row("a"))
    assert {path.name for path in run.iterdir()} == set(LIGHT)
    assert not store.error_file("a").exists()


def test_what_a_kill_after_the_row_has_left_is_put_away(store: Store) -> None:
    left, going = (files(store, key, *LIGHT, *HEAVY) for key in ("a", "b"))
    store.rows.write_text(json.dumps(row("a")) + "\n", encoding="utf-8")
    store.tidy()
    assert {path.name for path in left.iterdir()} == set(LIGHT)
    assert {path.name for path in going.iterdir()} == {*LIGHT, *HEAVY}  # it has no row yet


def test_the_weights_of_a_first_stage_are_put_away_too(store: Store) -> None:
    light = {*LIGHT, *(f"first_stage/{name}" for name in LIGHT)}
    heavy = {*HEAVY, *(f"first_stage/{name}" for name in HEAVY)}
    finished = files(store, "a", *light, *heavy)
    store.finish(row("a"))
    assert held(finished) == light
    left = files(store, "b", *light, *(name for name in heavy if "/" in name))  # killed while it put them away
    going = files(store, "c", *light, *heavy)
    with store.rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row("b")) + "\n")
    store.tidy()
    assert held(left) == light
    assert held(going) == light | heavy


@pytest.mark.parametrize(
    ("found", "goes_on"),
    [
        ((), True),
        (("config.json", "checkpoint.safetensors"), True),
        ((*LIGHT, *HEAVY), True),
        (LIGHT, False),
        (("config.json", "checkpoint.safetensors", "failure.json"), False),
        (("first_stage/done", "first_stage/model.safetensors"), True),
        (("first_stage/done",), False),
        (("first_stage/checkpoint.safetensors", "first_stage/failure.json"), False),
    ],
)
def test_which_runs_go_on(store: Store, found: tuple[str, ...], goes_on: bool) -> None:
    run = files(store, "a", *found)
    assert store.has_begun("a") == (goes_on and bool(found))
    assert store.run_folder("a") == run
    assert held(run) == set(found) if goes_on else not run.exists()


@pytest.mark.parametrize(
    ("epochs", "ended", "goes_on"),
    [
        ([], False, True),
        ([{"validation": {}}], False, True),
        ([{"validation": {}}, {"validation": {}, "test": {}}], True, True),
        ([{"validation": {}}], True, False),
    ],
)
def test_a_run_that_ended_with_another_split_begins_anew(
    tmp_path: Path, epochs: list[dict[str, Any]], ended: bool, goes_on: bool
) -> None:
    store = Store(tmp_path, "test")
    run = files(store, "a", "config.json", "checkpoint.safetensors", *(["done", "model.safetensors"] if ended else []))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in epochs), encoding="utf-8")
    assert store.run_folder("a").exists() is goes_on


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_a_trial_is_for_its_user_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPG_SHARED", raising=False)
    with store.claim("a"):
        assert (store.trials / "a").stat().st_mode & 0o777 == 0o700


# -- in the repository -----------------------------------------------------------------------------------------------


def test_rows_are_committed_and_trials_under_way_are_not(tmp_path: Path) -> None:
    """Checkpoints hold weights; those of a search, of times and of reproductions lie a folder deeper."""
    (tmp_path / ".gitignore").write_bytes((Path(__file__).parents[2] / ".gitignore").read_bytes())
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    folders = ("results/margin", "results/times/margin", "results/hyperparameters/waterbirds100")
    aside = [f"{folder}/{name}" for folder in folders for name in ("trials/0000-abc/run/last.safetensors", "locks/0")]
    kept = [f"{folder}/{name}" for folder in folders for name in ("trials.jsonl", "search.journal", "best.toml")]
    asked = ["git", "-C", str(tmp_path), "check-ignore", *aside, *kept]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split() == aside
