"""The campaigns themselves: cases come again, failures are seen, and the page says what the rows say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from campaign import drive, forked, rubbish
from campaign.interface import CAMPAIGNS, campaign
from campaign.mutate import spoil_bytes, spoil_json, spoil_jsonl, spoil_text
from campaign.odd_images import MAKERS
from campaign.page import TITLES, main, page


@pytest.mark.slow
def test_a_short_campaign_of_rubbish(repo_root: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "campaign", "rubbish", "--cases", "340", "--seed", "1"]
    environment = os.environ | {"PYTHONPATH": str(repo_root / "tests"), "OMP_NUM_THREADS": "1"}
    rows = tmp_path / "rows.jsonl"
    done = subprocess.run([*line, "--rows", rows], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(rows.read_text())
    assert (row["campaign"], row["cases"], row["failures"], row["seed"]) == ("rubbish", 340, 0, 1)


# -- the driver ---------------------------------------------------------------------------------------------------


def counting(tried: list[int], stop: int | None = None) -> Any:
    def attempt(world: object, seed: int, number: int) -> str | None:
        if number == stop:
            raise KeyboardInterrupt
        tried.append(number)
        return "odd" if number % 100 == 50 else None

    return SimpleNamespace(prepare=lambda folder: None, attempt=attempt, CASES=3)


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    tried: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        drive.run(counting(tried, stop=260), seed=0, cases=300, progress=tmp_path / "p.jsonl")
    assert tried == list(range(260))
    tried.clear()
    tally = drive.run(counting(tried), seed=0, cases=300, progress=tmp_path / "p.jsonl")
    assert tried == list(range(200, 300))
    assert tally.failures == [(50, "odd"), (150, "odd"), (250, "odd")]
    row = tally.row("rubbish", 0)
    assert (row["campaign"], row["cases"], row["failures"], row["seed"]) == ("rubbish", 300, 3, 0)
    assert {"hardware", "versions", "commit", "date"} <= row.keys()


def test_there_is_no_such_campaign() -> None:
    with pytest.raises(ValueError, match=r"there are .*rubbish"):
        campaign("rubish")


# -- mutation -----------------------------------------------------------------------------------------------------

SPOILERS: dict[str, Callable[[Random], object]] = {
    "bytes": lambda draw: spoil_bytes(draw, bytes(range(256))),
    "text": lambda draw: spoil_text(draw, rubbish.world.CONFIG),
    "json": lambda draw: repr(spoil_json(draw, {"a": {"b": [1, 2]}, "c": "d"})),
    "jsonl": lambda draw: spoil_jsonl(draw, '{"a": 1}\n{"b": {"c": [2]}}\n'),
    "image": lambda draw: MAKERS[draw.choice(["zero by zero", "animated", "EXIF", "16 bits"])](draw),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_a_case_is_the_same_whenever_it_is_tried(name: str) -> None:
    first, again = ([SPOILERS[name](Random(f"3/{n}")) for n in range(20)] for _ in range(2))
    assert first == again
    assert len({str(value) for value in first}) > 10


@pytest.mark.parametrize("data", [b"", b"x"])
def test_there_is_always_something_to_spoil(data: bytes) -> None:
    spoilt = {spoil_bytes(Random(number), data) for number in range(200)}
    texts = {spoil_text(Random(number), data.decode()) for number in range(200)}
    assert len(spoilt - {data}) > 1
    assert len(texts - {data.decode()}) > 1


# -- the verdict --------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., str | None]:
    """The verdict on a command that ended so."""
    (tmp_path / "inner" / "case").mkdir(parents=True)

    def verdict(code: int = 2, err: str = "ipg: a.csv is cut", line: str = "train", **changes: Any) -> str | None:
        ending = forked.Ending(**{"code": code, "seconds": 1.0, "memory": 1 << 20, "out": "", "err": err, **changes})
        return rubbish.verdict(line.split(), ending, tmp_path / "inner" / "case", ("a.csv",))

    return verdict


def test_what_is_promised(ended: Callable[..., str | None]) -> None:
    assert ended() is None
    assert ended(0, "") is None
    assert ended(1, "", "data check a.csv") is None
    assert ended(2, "\n".join(["ipg: /x/a.csv: line 1"] * 5)) is None


def test_what_is_not(ended: Callable[..., str | None], tmp_path: Path) -> None:
    assert ended(-14) == "over 30 s"
    assert ended(-11) == "signal 11"
    assert "2049 MiB" in str(ended(0, memory=2049 << 20))
    assert "MiB" in str(ended(2, "ipg: a.csv: out of memory"))
    assert "KeyError" in str(ended(1, "Traceback (most recent call last):\n  x\nKeyError: 'a'"))
    assert str(ended(1, "")).startswith("exit 1")
    assert str(ended(2, "\n".join(["ipg: a.csv"] * 6))).startswith("6 lines")
    assert str(ended(2, "a.csv is cut")).startswith("1 lines")
    assert str(ended(2, "ipg: something is wrong")).startswith("does not name a.csv")
    case = tmp_path / "inner" / "case"
    (case / "out").mkdir()
    assert ended() is None
    (case / "out" / "done").touch()
    assert "looks finished" in str(ended())
    assert ended(0, "") is None
    (case / ".a.csv.1234.tmp").touch()
    assert str(ended(0, "")).startswith("left .a.csv")
    (tmp_path / "x.png").touch()
    assert ended(0, "") == "wrote outside: x.png"


# -- a process of its own -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of threads that other tests have left
@pytest.mark.parametrize("real", [False, True])
def test_a_command_is_run_and_measured(tmp_path: Path, real: bool) -> None:
    (tmp_path / "bad.toml").write_text("epochs = []")
    ending = forked.command(
        ["train", "--config", "bad.toml"], folder=tmp_path, logs=tmp_path, environment=dict(os.environ), real=real
    )
    assert ending.code == 2
    assert ending.err.startswith("ipg: bad.toml: epochs=[]")
    assert 10 << 20 < ending.memory < 2 << 30


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("does", "code", "says"),
    [
        (lambda: sys.exit(3), 3, ""),
        (lambda: 1 / 0, 1, "ZeroDivisionError"),
        (lambda: bytearray(50 << 30), 1, "MemoryError"),
        (lambda: __import__("time").sleep(60), -14, ""),
    ],
    ids=["exit", "bug", "memory", "hang"],
)
def test_how_a_command_may_end(
    does: Callable[[], object], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipg.__main__.main", does)
    monkeypatch.setattr(forked, "SECONDS", 1)
    ending = forked.command([], folder=tmp_path, logs=tmp_path, environment={})
    assert ending.code == code
    assert says in ending.err


# -- the page -----------------------------------------------------------------------------------------------------

PLACE = "# Reliability\n\n<!-- results:campaigns -->\n<!-- /results:campaigns -->\n"
ROW = {"campaign": "rubbish", "cases": 12345, "failures": 2, "seed": 7, "hardware": "CPU", "versions": {"ipg": "1"}}
ROW |= {"commit": "0123456789abcdef", "date": "2026-01-02T03:04:05+00:00"}


def test_the_page_is_made_from_the_newest_rows() -> None:
    made = page(PLACE, [ROW | {"cases": 1}, ROW])
    assert "2 of 12,345 cases broke the promise (seed 7, CPU, ipg 1, commit `0123456`, 2026-01-02)." in made
    assert all(f"### {TITLES.get(name, name.replace('_', ' ').capitalize())}" in made for name in CAMPAIGNS)
    assert page(made, [ROW]) == made
    assert "Not run yet." in page(PLACE, [])


def test_writing_and_checking(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    place, rows = tmp_path / "docs" / "reliability.md", tmp_path / "results" / "reliability.jsonl"
    place.write_text(PLACE)
    drive.append(rows, ROW)
    assert main(["--check", str(place)]) == 1
    assert main(["--write", str(place)]) == 0
    assert main(["--check", str(place)]) == 0
    drive.append(rows, ROW | {"failures": 0})
    assert main(["--check", str(place)]) == 1
    assert [json.loads(line)["failures"] for line in rows.read_text().splitlines()] == [2, 0]


def test_the_projects_own_page(repo_root: Path) -> None:
    assert main(["--check", str(repo_root / "docs" / "reliability.md")]) == 0
