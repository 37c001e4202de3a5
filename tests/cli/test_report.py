"""`ipg report`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ipg.notebook import Run
from ipg.report.build import page_data


def test_both_runs_stand_on_the_page(ipg, embedded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/ipg", "report", "plain run", "guided"])
    done = ipg("report", embedded_runs / "plain", embedded_runs / "guided", "--output", "new/page.html")
    assert (done.code, done.out) == (0, "Report: new/page.html\n")
    page = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "Plain training (ERM)" in page
    assert "Guided by pairs (IPG)" in page
    assert "Training used 8 pairs for 12,000 images" in page
    assert "ipg report &#39;plain run&#39; guided" in page
    assert "shoe" not in page  # the words of the demo are its own
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["page.html"]


def test_settings_tell_of_the_pairs_in_a_file_as_they_are(ipg, photos: Path, tmp_path: Path) -> None:
    """Not of the builder and the number that would have served had there been no file."""
    guided = ("--method", "ipg", "--epochs", 1, "--batch", 8, "--output", tmp_path / "guided")
    data = ("--data", photos / "photos.csv", "--size", 16, "--model", "small_cnn", "--pairs", photos / "pairs.csv")
    assert ipg("train", *data, *guided).code == 0
    views = page_data([Run.load(photos / "plain"), Run.load(tmp_path / "guided")]).runs
    assert [view.config["held_out_pairs"] for view in views] == [4, 4]
    assert [view.config["pair_builder"] for view in views] == ["own", "own"]
    assert [view.config["pairs"] for view in views] == [f"{photos / 'pairs.csv'} ({count})" for count in (0, 8)]


def test_one_run_is_enough_and_the_page_lands_here(ipg, finished: Path, tmp_path: Path) -> None:
    assert ipg("report", finished).out == "Report: report.html\n"
    assert "Guided by pairs (IPG)" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_page_replaces_a_page_and_no_other_file(ipg, assert_refused, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,b\n")
    assert_refused(
        "report", finished, "--output", "mine.csv", says=("mine.csv exists and is no page of ipg", "--force")
    )
    assert (tmp_path / "mine.csv").read_text() == "a,b\n"
    for _ in range(2):
        assert ipg("report", finished, "--output", "page.html").code == 0
    assert ipg("report", finished, "--output", "mine.csv", "--force").code == 0
    assert (tmp_path / "mine.csv").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_runs_of_one_method_are_known_by_their_folders(ipg, bars: list[str], finished: Path, tmp_path: Path) -> None:
    assert ipg("train", *bars, "--seed", "1", "--output", "again").code == 0
    assert ipg("report", finished, "again").code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'Guided by pairs 1 (IPG) <span class="folder">finished</span>' in page
    assert 'Guided by pairs 2 (IPG) <span class="folder">again</span>' in page


@pytest.fixture
def moving(ipg, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `photos`, `pairs` and a run in `runs` that knows them by relative paths."""
    home = tmp_path / "home"
    for name in ("images", "photos.csv"):
        (home / "photos").mkdir(parents=True, exist_ok=True)
        (home / "photos" / name).symlink_to(photos / name)
    (home / "pairs").mkdir()
    (home / "pairs" / "manifest.csv").symlink_to(photos / "pairs.csv")
    (home / "pairs" / "pairs").symlink_to(photos / "pairs")
    monkeypatch.chdir(home)
    line = ["--data", "photos/photos.csv", "--pairs", "pairs", "--size", 16, "--model", "small_cnn", "--epochs", 1]
    done = ipg("train", *line, "--batch", 8, "--output", "runs/guided")
    assert done.code == 0, done
    return home


def test_a_run_is_read_back_from_another_folder(ipg, moving: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for verb in ("report", "evaluate"):
        done = ipg(verb, "../home/runs/guided")
        assert done.code == 0, done


def test_a_run_that_is_kept_elsewhere_knows_where_it_was_started(
    ipg, assert_refused, moving: Path, tmp_path: Path, monkeypatch
) -> None:
    line = ["--data", "photos/photos.csv", "--pairs", "pairs", "--size", 16, "--model", "small_cnn", "--epochs", 1]
    assert ipg("train", *line, "--batch", 8, "--output", tmp_path / "store" / "run").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for words in (("report",), ("evaluate",), ("export", "--format", "torch")):
        done = ipg(words[0], "../store/run", *words[1:])
        assert done.code == 0, done
    moving.rename(tmp_path / "gone")
    assert_refused("evaluate", "../store/run", says=("the pairs pairs of the run", "say where they are with --pairs"))


def test_a_run_and_its_files_that_have_moved_together_are_read_there(
    ipg, moving: Path, tmp_path: Path, monkeypatch
) -> None:
    """Though other files are now where it was started."""
    moving.rename(tmp_path / "new")
    (moving / "photos").mkdir(parents=True)
    (moving / "photos" / "photos.csv").write_text("path,label\n")
    monkeypatch.chdir(tmp_path)
    done = ipg("evaluate", "new/runs/guided")
    assert done.code == 0, done


def test_a_folder_with_the_name_of_a_data_set_is_found_again(ipg, photos: Path, tmp_path: Path) -> None:
    for row in (photos / "photos.csv").read_text(encoding="utf-8").splitlines()[1:]:
        name, label, _, split = row.split(",")
        (tmp_path / "folder" / split / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / split / label / Path(name).name).symlink_to(photos / name)
    line = ["--data", "./folder", "--method", "erm", "--size", 16, "--model", "small_cnn", "--epochs", 1, "--batch", 8]
    assert ipg("train", *line).code == 0
    done = ipg("evaluate", "runs/folder-erm-0")
    assert done.code == 0, done


def test_a_run_whose_data_and_pairs_have_moved(ipg, assert_refused, moving: Path, tmp_path: Path, monkeypatch) -> None:
    (moving / "photos").rename(tmp_path / "pictures")
    (moving / "pairs").rename(tmp_path / "couples")
    monkeypatch.chdir(tmp_path)
    run = "home/runs/guided"
    assert_refused("report", run, says=("the pairs pairs of the run", "say where they are with --pairs"))
    assert_refused(
        "report", run, "--pairs", "couples", says=("photos/photos.csv", "say where they are with --data-path")
    )
    assert ipg("report", run, "--pairs", "couples", "--data-path", "pictures").code == 0
    both = ipg("evaluate", run, "--pairs", "couples", "--data", "pictures/photos.csv")
    assert both.code == 0, both
    exported = ipg("export", run, "--format", "torch", "--data-path", "pictures", "--output", "program")
    assert exported.code == 0, exported


def test_a_run_whose_image_is_gone_is_named(ipg, assert_refused, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "images", tmp_path / "mine" / "images")
    shutil.copy(photos / "photos.csv", tmp_path / "mine")
    line = ("--data", "mine/photos.csv", "--method", "erm", "--size", 16, "--model", "small_cnn", "--epochs", 1)
    assert ipg("train", *line, "--output", "gone").code == 0
    (tmp_path / "mine" / "images" / "train0.png").unlink()
    says = ("ipg: gone: ", "there is no image 'images/train0.png'", "--data-path")
    assert_refused("report", photos / "plain", "gone", says=says)


@pytest.mark.filterwarnings("default:the held-out pairs of:UserWarning")
def test_other_pairs_than_those_of_then(ipg, assert_refused, moving: Path) -> None:
    rows = (moving / "pairs" / "manifest.csv").read_text(encoding="utf-8").splitlines()
    (moving / "fewer").mkdir()
    (moving / "fewer" / "pairs").symlink_to(moving / "pairs" / "pairs")
    (moving / "fewer" / "manifest.csv").write_text("\n".join(rows[:-2]) + "\n", encoding="utf-8")
    assert ipg("report", "runs/guided", "--pairs", "fewer").code == 0  # which were held out
    (moving / "fewer" / "manifest.csv").write_text("\n".join([rows[0], *rows[3:]]) + "\n", encoding="utf-8")
    assert_refused(
        "report", "runs/guided", "--pairs", "fewer", says=("has changed since", "the files of then with --pairs")
    )


def test_a_page_inside_the_run_does_not_disturb_it(ipg, bars: list[str], finished: Path) -> None:
    assert ipg("report", finished, "--output", finished / "report.html").code == 0
    assert "nothing to do" in ipg("train", *bars, "--output", finished).out
