"""Tables in pages: what stands between markers is what the rows give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from experiments.table_rows import DRAWS_THE_SAME, PAGE, arguments, row, write

from ipg.experiments.pages import fill
from ipg.experiments.study import load_study
from ipg.experiments.table import PICTURE, main


def test_fill_replaces_what_stands_between_the_markers_alone() -> None:
    filled = fill(PAGE, {"colored_mnist": "new"})
    assert filled == PAGE.replace("old", "new")
    assert fill(filled, {"colored_mnist": "new"}) == filled


@pytest.mark.parametrize("page", ["nothing", "<!-- results:colored_mnist -->\nnever closed\n"])
def test_fill_names_the_markers_that_are_missing(page: str) -> None:
    with pytest.raises(ValueError, match="<!-- /results:colored_mnist -->"):
        fill(page, {"colored_mnist": "new"})


def test_write_then_check_then_a_new_row(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(project, "--check")) == 1
    assert main(arguments(project, "--write")) == 0
    page = (project / "README.md").read_text(encoding="utf-8")
    assert re.match(r"before\n<!-- results:colored_mnist -->\n\| ", page)
    assert page.endswith("<!-- /results:colored_mnist -->\nafter\n")
    assert main(arguments(project, "--check")) == 0

    study = load_study(project / "studies" / "first.toml")
    file = project / "results" / "first" / "trials.jsonl"
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row(study.trials[5], 0.74)) + "\n")
    capsys.readouterr()
    assert main(arguments(project, "--check")) == 1
    assert "README.md is not what the rows give; run python -m ipg.experiments.table" in capsys.readouterr().err
    assert main(arguments(project, "--write")) == 0
    assert "72.0 ± 2.0" in (project / "README.md").read_text(encoding="utf-8")  # 70, 72, 74 %


def test_a_page_edited_by_hand_fails_the_check(project: Path) -> None:
    main(arguments(project, "--write"))
    page = project / "results" / "README.md"
    page.write_text(page.read_text(encoding="utf-8").replace("71.0", "74.9"), encoding="utf-8")
    assert main(arguments(project, "--check")) == 1


def test_a_page_without_markers_is_one_clear_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "README.md").write_text("no place\n", encoding="utf-8")
    assert main(arguments(project, "--write")) == 2
    assert "has no place for a table" in capsys.readouterr().err


def test_the_projects_own_pages_are_what_its_rows_give(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--check", str(repo_root / "README.md")])
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if DRAWS_THE_SAME or not line.startswith(str(repo_root / PICTURE))] == []


def test_pages_in_docs_are_filled_as_well(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = project / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text(PAGE, encoding="utf-8")
    assert main(arguments(project, "--write")) == 0
    assert page.read_text(encoding="utf-8") == (project / "README.md").read_text(encoding="utf-8")
    page.write_text(PAGE, encoding="utf-8")
    assert main(arguments(project, "--check")) == 1
    assert "benchmarks.md is not what the rows give" in capsys.readouterr().err


def test_the_readme_may_leave_all_tables_to_docs(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "benchmarks.md").write_text(PAGE, encoding="utf-8")
    (project / "README.md").write_text("no place\n", encoding="utf-8")
    assert main(arguments(project, "--write")) == 0
    assert (project / "README.md").read_text(encoding="utf-8") == "no place\n"


def test_a_place_for_a_study_that_is_not_there_is_one_clear_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "README.md").write_text(PAGE.replace("colored_mnist", "colored_mnits"), encoding="utf-8")
    assert main(arguments(project, "--write")) == 2
    assert "has a place for 'colored_mnits', of which there is no study" in capsys.readouterr().err


def test_a_measurement_of_speed_that_does_not_name_its_commit_enters_no_page(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"benchmark": "steps", "case": "ipg b32", "value": 3.0, "unit": "ms", "baseline": None, "ratio": None}
    told |= {"hardware": "a machine", "versions": {"torch": "9", "python": "3"}, "commit": None, "date": "2026-01-01"}
    write(project / "results" / "speed.jsonl", [told])
    assert main(arguments(project, "--write")) == 2
    assert "speed.jsonl: the row of ipg b32 does not name its commit" in capsys.readouterr().err
    assert not (project / "results" / "README.md").exists()
