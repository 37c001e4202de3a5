"""`ipg bench`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

LINE = ("bench", "steps", "--device", "cpu", "--threads", "1")


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Milliseconds that guided training takes, where plain training takes 10; to be changed by the test."""
    from ipg.benchmarks.measure import Measurement, compare
    from ipg.benchmarks.run import BENCHMARKS

    given = [15.0, 15.0]

    def measure(device: Any, *, quick: bool) -> Iterator[Measurement]:
        values = {"erm": [10.0, 10.0], "ipg": given}
        yield from compare("steps", values, unit="ms", baselines={"ipg": "erm"}, ideals={"ipg": 1.5})

    monkeypatch.setitem(BENCHMARKS, "steps", measure)
    return given


def test_every_case_is_a_line(ipg, times: list[float]) -> None:
    times[:] = [15.0, 17.0]
    done = ipg(*LINE)
    assert done.code == 0, done
    title, *lines = done.out.splitlines()
    assert title.startswith("steps (")
    assert title.endswith(" 1 threads)")
    assert lines == ["  erm: 10 ms", "  ipg: 16 ms (15.5 to 16.5), 1.6 × erm, ideal 1.5"]


def test_rows_are_kept_and_added_to(ipg, times: list[float]) -> None:
    for _ in range(2):
        assert ipg(*LINE, "--write", "kept/speed.jsonl").code == 0
    rows = [json.loads(line) for line in Path("kept/speed.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["case"] for row in rows] == ["erm", "ipg", "erm", "ipg"]
    assert all(row.keys() >= {"commit", "hardware", "versions", "date"} for row in rows)


def test_what_moved_is_said_and_is_no_failure_unless_asked_for(ipg, times: list[float]) -> None:
    ipg(*LINE, "--write", "speed.jsonl")
    done = ipg(*LINE, "--against", "speed.jsonl")
    assert (done.code, done.out.splitlines()[-1]) == (0, "Measured 3 times: 0 of 2 cases moved by more than the noise.")
    times[:] = [20.0, 20.0]
    done = ipg(*LINE, "--against", "speed.jsonl", "--repeat", "2")
    assert done.code == 0
    assert done.out.splitlines()[-2:] == [
        "Measured 2 times: 1 of 2 cases moved by more than the noise.",
        "  worse: steps, ipg: 1.5 → 2 × erm (33 % up, noise 3 %)",
    ]
    assert ipg(*LINE, "--against", "speed.jsonl", "--fail").code == 1
    times[:] = [12.0, 12.0]
    done = ipg(*LINE, "--against", "speed.jsonl", "--fail")
    assert done.code == 0
    assert "  better: steps, ipg: 1.5 → 1.2 × erm (20 % down, noise 3 %)" in done.out


def test_cases_that_came_and_went_are_named(ipg, times: list[float]) -> None:
    ipg(*LINE, "--write", "speed.jsonl")
    file = Path("speed.jsonl")
    file.write_text(file.read_text(encoding="utf-8").replace('"case": "erm"', '"case": "was"'), encoding="utf-8")
    out = ipg(*LINE, "--against", "speed.jsonl").out
    assert "Cases without a row: 1\n  steps: erm\n" in out
    assert "Cases in the rows alone: 1\n  steps: was\n" in out


def test_a_machine_without_rows_is_refused_before_anything_is_measured(assert_refused, ipg, times: list[float]) -> None:
    ipg(*LINE, "--write", "speed.jsonl")
    file = Path("speed.jsonl")
    file.write_text(file.read_text(encoding="utf-8").replace("1 threads", "9 threads"), encoding="utf-8")
    assert_refused(*LINE, "--against", file, says=("no row is of this machine", "9 threads", "--write"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench", "step"], "there is no benchmark 'step'; there are distances"),
        (["bench", "--device", "tpu"], "there is no device 'tpu'"),
        (["bench", "--quick", "--write", "speed.jsonl"], "mean nothing"),
        (["bench", "--quick", "--against", "speed.jsonl"], "mean nothing"),
        (["bench", "--fail"], "--against FILE"),
        (["bench", "--write", "."], ". is a folder; name a file"),
        (["bench", "--against", "none.jsonl"], "there is no file none.jsonl"),
        (["bench", "--threads", "0"], "--threads"),
    ],
)
def test_mistakes_are_one_clear_line(assert_refused, arguments: list[str], says: str) -> None:
    assert_refused(*arguments, says=(says,))


def test_help_names_every_benchmark(ipg) -> None:
    from ipg.benchmarks.run import BENCHMARKS

    text = " ".join(ipg("bench", "--help").out.replace("│", " ").split())
    assert f"Which: {', '.join(BENCHMARKS)}; all by default." in text


def test_a_benchmark_of_another_device_says_so(ipg) -> None:
    done = ipg("bench", "gpu", "--quick", "--device", "cpu", "--threads", "1")
    assert done.code == 0, done
    assert done.out.endswith(")\n  nothing to measure on this device\n")


def test_a_quick_run_of_a_real_benchmark(ipg) -> None:
    done = ipg("bench", "evaluation", "--quick", "--device", "cpu", "--threads", "1")
    assert done.code == 0, done
    assert "small_cnn evaluate: " in done.out
