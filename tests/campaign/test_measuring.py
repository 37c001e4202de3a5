"""The campaigns that measure: same bits, versions and size, in short, and what is made of what they find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from campaign import drive, large, measured, same_bits, size, versions
from campaign.page import main
from typer.testing import CliRunner

from ipg.cli import app


@pytest.fixture
def short(repo_root: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The row of a short campaign."""

    def run(*line: str) -> dict[str, Any]:
        environment = os.environ | {"PYTHONPATH": str(repo_root / "tests"), "OMP_NUM_THREADS": "1"}
        rows = tmp_path / "rows.jsonl"
        call = [sys.executable, "-m", "campaign", *line, "--rows", str(rows)]
        done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(rows.read_text())
        return found

    return run


@pytest.mark.slow
def test_a_short_campaign_of_the_same_bits(short: Callable[..., dict[str, Any]]) -> None:
    row = short("same_bits", "--cases", "3")
    assert (row["campaign"], row["cases"], row["failures"]) == ("same_bits", 3, 0)
    assert [len(found) for found in row["weights"].values()] == [1, 1, 1]


@pytest.mark.slow
def test_a_short_campaign_of_size(short: Callable[..., dict[str, Any]]) -> None:
    row = short("size", "--cases", "7")
    assert (row["campaign"], row["cases"], row["failures"]) == ("size", 7, 0)
    assert list(row["sizes"]) == list(large.KINDS)
    assert all(seconds > 0 and mebibytes > 20 for ((_, seconds, mebibytes),) in row["sizes"].values())


# -- the same bits ------------------------------------------------------------------------------------------------


def test_other_bits_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def train(folder: Path, data: Path, method: str, threads: int, around: dict[str, str]) -> None:
        (folder / "run").mkdir(parents=True)
        written.append(folder)
        loss = 0.5 if "TZ" not in around else 0.25
        (folder / "run" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
        (folder / "run" / "metrics.jsonl").write_text(json.dumps({"seconds": len(written), "loss": loss}))

    monkeypatch.setattr(same_bits, "train", train)
    world = same_bits.prepare(tmp_path)
    assert [same_bits.attempt(world, 0, number) for number in range(10)] == [None] * 10
    found = [str(same_bits.attempt(world, 0, number)) for number in range(10, 20)]
    assert all(text.endswith("metrics.jsonl differs") and "TZ=" in text for text in found)
    assert len({folder for folder in written if "case" in folder.parts}) > 3


def test_surroundings_are_drawn_from_the_seed() -> None:
    first, again = ([same_bits.surroundings(Random(f"0/{n}")) for n in range(9)] for _ in range(2))
    assert first == again
    assert all(len({found[name] for found in first}) > 2 for name in ("LC_ALL", "TZ", "PYTHONHASHSEED"))


def test_whether_threads_agree_is_said() -> None:
    weights = {"erm": ["a", "a"], "ipg": ["b", "c"], "joint": ["d"]}
    assert same_bits.shown({"weights": weights}) == (
        "One thread and two gave the same bits with erm and different bits with ipg."
    )
    assert same_bits.shown({"weights": {"erm": ["a"]}}) == ""


# -- versions -----------------------------------------------------------------------------------------------------


def test_floors_are_the_lower_bounds() -> None:
    extras = {"edit": ["d>=5"], "search": ["c[binary]>=3.2.1"], "dev": ["me[edit,search]", "pytest>=8"]}
    project = {"dependencies": ["a>=1.0", "b"], "optional-dependencies": extras}
    assert versions.floors(project) == ["a==1.0", "c==3.2.1", "pytest==8"]


def test_a_report_is_counted(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(
        '<testsuites><testsuite tests="10" failures="1" errors="2" skipped="3"/></testsuites>'
    )
    assert versions.counts(tmp_path / "r.xml") == {"tests": 7, "failed": 3, "skipped": 3}


def test_failures_and_pythons_that_lack_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "interpreter", lambda version: None if version == "3.12" else Path("python"))
    monkeypatch.setattr(versions, "make", lambda home, python, *, oldest: python)
    cases = '<testcase classname="a.b" name="fine"/><testcase classname="a.b" name="t[1]"><failure/></testcase>'

    def report_on(python: Path, report: Path, *, oldest: bool) -> dict[str, Any]:
        report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return {"tests": 9, "failed": int(oldest), "libraries": {"torch": "2"}}

    monkeypatch.setattr(versions, "tested", report_on)
    tally = drive.run(versions, seed=0, cases=4)  # type: ignore[arg-type]
    assert tally.failures == [(0, "Python 3.11, oldest: 1 of 9 tests fail, among them a.b::t[1]")]
    lines = versions.shown(tally.row("versions", 0)).splitlines()
    assert [line.split("|")[-3].strip() for line in lines[2:]] == ["9", "9", "not there", "9"]


def test_this_python_is_found() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = versions.interpreter(version)
    assert found is None or subprocess.run([found, "--version"], capture_output=True, text=True).stdout[7:11] == version
    assert versions.interpreter("2.99") is None


# -- size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["study", "report"])
def test_made_up_trials_are_read_as_real_ones(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large.KINDS[name].make(tmp_path, 20, 0)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, list(large.KINDS[name].line))
    assert done.exit_code == 0, done.output
    if name == "study":
        assert done.output.endswith("20 trials, 10 done, 0 running, 0 begun, 0 failed, 10 missing\n")


def test_aims_and_slopes() -> None:
    kind = large.Kind("things", (1, 10, 100), lambda *_: None, (), seconds=20, memory=100 << 20)
    assert size.missed(kind, {1: (1, 5), 10: (1, 10), 100: (10, 100)}) is None
    assert size.missed(kind, {100: (21, 5)}) == "21.00 s, aimed at 20"
    assert size.missed(kind, {100: (1, 101)}) == "101 MiB, aimed at 100"
    assert size.missed(kind, {10: (0.1, 5), 100: (10, 5)}) == "seconds grow with the power 2.00 of the size"
    assert size.rises({10: (1, 7), 100: (10, 7), 1: (9, 9)}) == pytest.approx([1, 0])
    assert size.rises({10: (1, 7)}) == [None, None]


def test_growth_of_a_training() -> None:
    resident = [(float(second), (1000 + 2 * max(second - 30, 0)) << 20) for second in range(101)]
    found = size.growth(measured.Measured(seconds=100, resident=resident))
    assert (found["early"], found["late"]) == (1000, 1130)
    assert found["growth"] == pytest.approx(0.13)


def test_a_command_is_measured(tmp_path: Path) -> None:
    found = measured.measured(["methods", "nope"], folder=tmp_path, environment={})
    assert found.code == 2
    assert "nope" in found.err
    assert found.peak > 10 << 20
    stopped = measured.measured(["methods"], folder=tmp_path, environment={}, seconds=0.1)
    assert (stopped.code, stopped.seconds < 5) == (0, True)


ROW = {
    "campaign": "size", "cases": 22, "failures": 0, "seed": 0, "hardware": "CPU", "versions": {"ipg": "1"},
    "commit": "0123456789abcdef", "date": "2026-01-02T03:04:05+00:00",
    "sizes": {"folder": [[1000, 2.0, 600.0], [10000, 4.0, 600.0], [100000, 40.0, 800.0]]},
    "training": {"minutes": 3.0, "early": 500.0, "late": 505.0, "growth": 0.01},
}  # fmt: skip


def test_the_page_has_the_table_and_the_figure(tmp_path: Path) -> None:
    place = tmp_path / "docs" / "reliability.md"
    place.parent.mkdir()
    place.write_text("<!-- results:campaigns -->\n<!-- /results:campaigns -->\n")
    drive.append(tmp_path / "results" / "reliability.jsonl", ROW)
    assert main(["--write", str(place)]) == 0
    text = place.read_text()
    assert "| images in a folder | 1,000 … 10,000 … 100,000 | 2 … 4 … 40 | 1.00 | 600 … 600 … 800 | 0.12 |" in text
    assert (
        "A training run of 3 minutes had 500.0 MiB resident after a fifth of its time and 505.0 MiB at its end: +1.00%."
        in text
    )
    assert "images in a folder" in (place.parent / "size.svg").read_text()
    assert main(["--check", str(place)]) == 0
    (place.parent / "size.svg").write_text("another")
    assert main(["--check", str(place)]) == 1
