"""Kills and starvation themselves: short forms of both, and that what is not as promised is seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from campaign import kills, shortages, starvation
from campaign.accidents import ACCIDENTS
from campaign.database import PASSWORD
from campaign.forked import Ending
from campaign.jobs import JOBS, Place
from campaign.same import difference


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kills", "starvation"])
def test_a_short_campaign(name: str, repo_root: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "campaign", name, "--cases", "12", "--seed", "1", "--rows", str(tmp_path / "rows")]
    environment = os.environ | {"PYTHONPATH": str(repo_root / "tests"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "rows").read_text())
    assert (row["campaign"], row["cases"], row["failures"], row["seed"]) == (name, 12, 0, 1)


# -- kills --------------------------------------------------------------------------------------------------------


def test_all_jobs_have_their_turn_and_long_ones_come_late() -> None:
    schedule = kills._schedule(list(JOBS))
    assert Counter(schedule) == kills.WEIGHTS
    assert not {"runner", "ranks", "database"} & set(schedule[:12])
    without = kills._schedule([job for job in JOBS if job != "database"])
    assert (len(without), "database" in without) == (100, False)


def test_signals_are_drawn_again_the_same() -> None:
    first, again = ([kills._blow(Random(f"3/{n}"), "runner") for n in range(300)] for _ in range(2))
    assert first == again
    names = Counter(blow.name for blow in first)
    assert names["SIGKILL"] > sum(names.values()) / 2
    assert set(names) == set(kills.SIGNALS)
    assert {blow.target for blow in first if blow.name == "SIGKILL"} == {"group", "leader", "child"}
    assert {blow.target for blow in first if blow.name == "Ctrl-C"} == {"group"}


@pytest.fixture
def case(tmp_path: Path) -> kills.Case:
    return kills.Case(Place(tmp_path, None, {"ipg": 1.0}), "ipg", False, "case-0")


def ending(code: int, err: str = "", out: str = "") -> Ending:
    return Ending(code, 1.0, 1 << 20, out, err)


@pytest.mark.parametrize(
    ("name", "code", "err", "good"),
    [
        ("SIGKILL", -9, "", True),
        ("SIGKILL", 1, "Traceback", False),
        ("SIGTERM", -15, "", True),
        ("SIGTERM", 130, "ipg: stopped after 3 of 9 iterations\n", True),
        ("Ctrl-C", 130, "ipg: interrupted\n", True),
        ("Ctrl-C", -2, "Traceback\nKeyboardInterrupt\n", False),
        ("Ctrl-C", -15, "", False),
        ("Ctrl-C twice", 0, "", True),
        ("Ctrl-C twice", 130, "", False),
        ("Ctrl-C twice", 130, "ipg: one\nipg: two\n", False),
    ],
)
def test_answers_to_signals(case: kills.Case, name: str, code: int, err: str, good: bool) -> None:
    blow = kills.Blow(name, "leader", 0.5, 0.1, True)
    if good:
        case._check_answer(blow, ending(code, err))
    else:
        with pytest.raises(kills.BrokenPromiseError, match="exit"):
            case._check_answer(blow, ending(code, err))


def test_what_a_command_has_to_say(case: kills.Case) -> None:
    wanted = ["from iteration 6 of"]
    assert case._check(ending(0, out="ipg on x, from iteration 6 of 72"), wanted)
    with pytest.raises(kills.BrokenPromiseError, match="does not say"):
        case._check(ending(0, out="ipg on x"), wanted)
    assert not case._check(ending(2, "ipg: run is in use by another process"), wanted)
    with pytest.raises(kills.BrokenPromiseError, match="exit 2"):
        case._check(ending(2, "ipg: run is another"), wanted)


def test_processes_are_known_by_their_cache(tmp_path: Path) -> None:
    assert kills.alive(tmp_path) == []
    environment = os.environ | {"IPG_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as process:
        until = time.monotonic() + 30
        while not (found := kills.alive(tmp_path)) and time.monotonic() < until:
            time.sleep(0.01)
        assert found == [process.pid]
        process.send_signal(signal.SIGKILL)
    assert kills.alive(tmp_path) == []


# -- the same results -----------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same results."""
    for name, seconds in (("one", 1), ("other", 2)):
        folder = tmp_path / name
        (folder / "run").mkdir(parents=True)
        rows = [{"key": key, "value": 0.5, "seconds": seconds} for key in ("ab" if seconds == 1 else "ba")]
        (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "run" / "lock").touch()
        (folder / "page.html").write_text(f"<dt>date</dt><dd>{seconds}</dd><p>five</p>")
    (tmp_path / "one" / "run" / ".lock").touch()
    return tmp_path / "one", tmp_path / "other"


def test_what_differs_for_good_reasons_is_the_same(two: tuple[Path, Path]) -> None:
    assert difference(*two) is None


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("run/.model.0123abcd.tmp", "", "run/.model.0123abcd.tmp should not be there"),
        ("trials.jsonl", '{"key": "a", "value": 0.5}\n', "trials.jsonl differs"),
        ("trials.jsonl", '{"key": "a", "value": 0.5}\n' * 2, "trials.jsonl differs"),
        ("trials.jsonl", '{"key": "a", "val', "trials.jsonl is not whole"),
        ("page.html", "<p>six</p>", "page.html differs"),
    ],
)
def test_what_is_not_the_same(two: tuple[Path, Path], file: str, text: str, says: str) -> None:
    (two[0] / file).write_text(text)
    assert str(difference(*two)).startswith(says)


def test_a_file_that_is_missing(two: tuple[Path, Path]) -> None:
    (two[0] / "page.html").unlink()
    assert difference(*two) == "page.html is missing"


# -- starvation -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hungry(tmp_path: Path) -> starvation.Case:
    return starvation.Case(Place(tmp_path, None), Random(0), "case-0")


@pytest.mark.parametrize(
    ("code", "err", "says"),
    [
        (1, "Traceback (most recent call last):\n  x\nKeyError: 'a'", "exit 1"),
        (2, "", "exit 2"),
        (2, "ipg: no space left\nwhat", "exit 2"),
        (2, "\n".join(["ipg: no space left"] * 6), "exit 2"),
        (2, "ipg: something is wrong", "does not say"),
        (0, f"warning: {PASSWORD}", "password"),
    ],
)
def test_what_is_not_a_clear_line(hungry: starvation.Case, code: int, err: str, says: str) -> None:
    with pytest.raises(starvation.BrokenPromiseError, match=says):
        hungry.check(ending(code, err), "no space")


def test_what_is_a_clear_line(hungry: starvation.Case) -> None:
    assert hungry.check(ending(2, "ipg: a.txt: No space left on device."), "no space").code == 2
    assert hungry.check(ending(0), "no space").code == 0
    with pytest.raises(starvation.BrokenPromiseError, match="exit 0"):
        hungry.check(ending(0), "no space", well=False)


def test_every_kind_comes_among_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = object()
    monkeypatch.setattr(shortages, "may_mount", lambda root: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    kinds = starvation._possible(Place(tmp_path, server))
    assert list(starvation.KINDS) == kinds[: len(starvation.KINDS)]
    assert starvation.CASES % len(kinds) == 0
    monkeypatch.setattr(shortages, "may_mount", lambda root: False)
    assert not {"disk full", "read-only", "database stopped"} & set(starvation._possible(Place(tmp_path, None)))


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_accident_changes_the_data(accident: Callable[[Random, Path], str], tmp_path: Path) -> None:
    from campaign import world

    (tmp_path / "seeds").mkdir()
    world.pictures(tmp_path / "seeds")
    shutil.copytree(tmp_path / "seeds", tmp_path / "kept")
    says = accident(Random(4), tmp_path / "seeds")
    assert says.endswith((".csv", ".png"))
    assert difference(tmp_path / "seeds", tmp_path / "kept") is not None
