"""Rows in, page and figure out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipg.benchmarks.page import MISSING, TABLES, main

PAGE = (
    "before\n" + "\n".join(f"<!-- results:{name} -->\nold\n<!-- /results:{name} -->" for name in TABLES) + "\nafter\n"
)
ORIGIN = {
    "hardware": "A & B, 1 threads",
    "versions": {"ipg": "1", "python": "3.99", "torch": "9.9"},
    "commit": "0123456789abcdef",
    "date": "2026-01-01",
}


def row(benchmark: str, case: str, value: float, **changes: Any) -> dict[str, Any]:
    names = {"benchmark": benchmark, "case": case, "value": value, "unit": "ms", "baseline": None, "ratio": None}
    return {**names, "low": value, "high": value, "ideal": None, **ORIGIN, **changes}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A page, and rows of plain steps and of a cost that grows as the square."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "speed.md").write_text(PAGE, encoding="utf-8")
    rows = [
        row("steps", "erm", 99.0),
        row("steps", "erm", 10.0, low=9.5, high=1234.5),
        row("steps", "ipg", 15.0, baseline="erm", ratio=1.51, ideal=1.5),
    ]
    for side in (10, 20, 40):
        rows.append(row("growth", f"side={side} erm", side**2))
        rows.append(row("growth", f"side={side} ipg", 2.0 * side**2, baseline=f"side={side} erm", ratio=2.0, ideal=1.5))
    write(tmp_path, rows)
    return tmp_path


def write(project: Path, rows: list[dict[str, Any]]) -> None:
    file = project / "results" / "speed.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in rows), encoding="utf-8")


def run(project: Path, what: str) -> int:
    return main([what, str(project / "docs" / "speed.md")])


def cells(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_have_the_newest_rows_and_say_where_they_come_from(project: Path) -> None:
    assert run(project, "--write") == 0
    text = (project / "docs" / "speed.md").read_text(encoding="utf-8")
    assert cells(text, "erm") == ["erm", "10 ms", "9.5 to 1,234", "–", "–", "–"]
    assert cells(text, "ipg") == ["ipg", "15 ms", "–", "1.51", "erm", "1.5"]
    assert "A & B, 1 threads; torch 9.9, Python 3.99; commit `0123456`" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert text.count(MISSING) == len(TABLES) - 2


def test_growth_has_its_slopes_in_a_table_and_a_figure(project: Path) -> None:
    run(project, "--write")
    text = (project / "docs" / "speed.md").read_text(encoding="utf-8")
    assert cells(text, "side of the images") == [
        *("side of the images", "10 … 40", "100 … 1,600", "2.00", "2.00", "200 … 3,200", "2.00", "2.00"),
        *("2 … 2", "1.5 … 1.5"),
    ]
    assert "](growth-a-b-1-threads.svg)" in text
    assert "slope 2.00 plain" in (project / "docs" / "growth-a-b-1-threads.svg").read_text(encoding="utf-8")


def test_write_then_check_then_a_new_row(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project, "--check") == 1
    assert run(project, "--write") == 0
    assert run(project, "--check") == 0
    file = project / "results" / "speed.jsonl"
    file.write_text(file.read_text(encoding="utf-8") + json.dumps(row("growth", "side=10 erm", 50.0)) + "\n")
    capsys.readouterr()
    assert run(project, "--check") == 1
    said = capsys.readouterr().err
    assert said.count("is not what the rows give; run python -m ipg.benchmarks.page --write") == 2  # page and figure


def test_a_figure_edited_by_hand_fails_the_check(project: Path) -> None:
    run(project, "--write")
    (project / "docs" / "growth-a-b-1-threads.svg").write_text("<svg/>", encoding="utf-8")
    assert run(project, "--check") == 1


@pytest.mark.parametrize("page", ["no place\n", "<!-- results:growth -->\n", "<!-- results:other -->\n"])
def test_a_page_without_a_place_is_one_clear_line(project: Path, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "docs" / "speed.md").write_text(page, encoding="utf-8")
    assert run(project, "--write") == 2
    assert "no place for" in capsys.readouterr().err


def test_the_projects_own_page_is_what_its_rows_give(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(repo_root / "docs" / "speed.md")]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", ["versions", "commit", "date"])
def test_a_row_that_does_not_say_where_it_comes_from_enters_no_page(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(project, [row("steps", "erm", 99.0), row("steps", "ipg", 15.0, **{name: None})])
    before = (project / "docs" / "speed.md").read_text(encoding="utf-8")
    assert run(project, "--write") == 2
    assert f"speed.jsonl: the row of ipg does not name its {name}, so that no table may" in capsys.readouterr().err
    assert (project / "docs" / "speed.md").read_text(encoding="utf-8") == before
