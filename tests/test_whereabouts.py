"""Where the files of a run are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipg.whereabouts import find_data, find_file


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run two folders below `project`, seen from elsewhere."""
    folder = tmp_path / "project" / "runs" / "one"
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def test_a_file_that_is_here_keeps_its_spelling(run: Path) -> None:
    Path("pairs").mkdir()
    (run.parent / "pairs").mkdir()
    assert find_file("./pairs", run=run) == "./pairs"


def test_files_are_found_from_the_nearest_folder_above_the_run_and_then_from_where_it_began(run: Path) -> None:
    began = run.parents[2] / "began"
    places = [began / "pairs", run.parents[1] / "pairs", run.parent / "pairs"]
    assert find_file("pairs", run=run, started_in=str(began)) == "pairs"  # nowhere
    for place in places:
        place.mkdir(parents=True)
        assert find_file("pairs", run=run, started_in=str(began)) == str(place)
    assert find_file("pairs", run=run.parents[2] / "gone", started_in=3) == "pairs"


def test_a_data_set_with_a_name_is_no_folder_of_that_name(run: Path) -> None:
    (run.parent / "waterbirds100").mkdir()
    (run.parent / "files").mkdir()
    name = "waterbirds100"
    assert find_data(name, None, run=run) == (name, None)
    assert find_data(name, "files", run=run) == (name, str(run.parent / "files"))
    assert find_data(name, "files", run=run, given="here") == (name, "here")


def test_a_table_that_has_moved_is_looked_for_in_the_folder_that_is_given(run: Path) -> None:
    moved = run.parents[2] / "moved"
    moved.mkdir()
    (moved / "labels.csv").touch()
    assert find_data("photos/labels.csv", None, run=run, given=str(moved)) == (str(moved / "labels.csv"), None)
    assert find_data("photos/labels.csv", "images", run=run, given=str(moved)) == (
        str(moved / "labels.csv"),
        str(moved),
    )
    assert find_data("photos/others.csv", None, run=run, given=str(moved)) == ("photos/others.csv", str(moved))
    there = run.parent / "photos" / "labels.csv"
    there.parent.mkdir()
    there.touch()
    assert find_data("photos/labels.csv", None, run=run, given=str(moved)) == (str(there), str(moved))


def test_a_folder_of_images_is_found_with_the_place_of_its_files(run: Path) -> None:
    for name in ("photos", "images"):
        (run.parent / name).mkdir()
    assert find_data("photos", None, run=run) == (str(run.parent / "photos"), None)
    assert find_data("photos", "images", run=run) == (str(run.parent / "photos"), str(run.parent / "images"))
    (run.parents[2] / "photos").mkdir()
    assert find_data("photos", None, run=run, given=str(run.parents[2])) == (
        str(run.parent / "photos"),
        str(run.parents[2]),
    )
