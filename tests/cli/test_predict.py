"""`ipg predict`."""

from __future__ import annotations

import csv
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from PIL import Image


def rows(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> Path:
    """Twelve images of several kinds, in folders, and a file that is none."""
    folder = tmp_path / "album"
    (folder / "more").mkdir(parents=True)
    for number in range(10):
        shutil.copy(photos / f"images/test{number}.png", folder / f"{number}.png")
    with Image.open(photos / "images/test0.png") as image:
        image.save(folder / "more" / "a, b.webp")
        image.convert("L").save(folder / "more" / "grey.tif")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_every_image_of_a_folder(ipg, photos: Path, album: Path) -> None:
    done = ipg("predict", photos / "plain", album, "--batch", "5")
    assert done.code == 0, done
    assert "12 of 12 images classified; predictions.csv has a line for each" in done.out
    found = rows("predictions.csv")
    assert list(found[0]) == ["path", "predicted", "probability", "p_above", "p_below", "error"]
    assert [row["path"] for row in found] == [*(f"{n}.png" for n in range(10)), "more/a, b.webp", "more/grey.tif"]
    for row in found:
        shares = {name: float(row[f"p_{name}"]) for name in ("above", "below")}
        assert sum(shares.values()) == pytest.approx(1, abs=2e-6)
        assert row["predicted"] == max(shares, key=shares.__getitem__)
        assert float(row["probability"]) == max(shares.values())
        assert row["error"] == ""


def test_the_labels_are_those_that_evaluation_counts(ipg, photos: Path) -> None:
    assert ipg("predict", photos / "plain", photos / "photos.csv").code == 0
    truth = rows(photos / "photos.csv")
    found = rows("predictions.csv")
    assert [row["path"] for row in found] == [row["path"] for row in truth]
    right = [p["predicted"] == t["label"] for p, t in zip(found, truth, strict=True) if t["split"] == "test"]
    kept = json.loads((photos / "plain" / "result.json").read_text())["metrics"]
    assert sum(right) / len(right) == kept["average"]


def test_the_size_of_batches_does_not_matter(ipg, photos: Path, album: Path) -> None:
    for batch in (1, 64):
        assert ipg("predict", photos / "plain", album, "--batch", batch, "--output", f"{batch}.csv").code == 0
    one, many = rows("1.csv"), rows("64.csv")
    assert [row["predicted"] for row in one] == [row["predicted"] for row in many]
    assert [float(row["p_above"]) for row in one] == pytest.approx([float(row["p_above"]) for row in many], abs=1e-5)


def test_unreadable_images_are_listed_and_the_others_predicted(ipg, photos: Path, album: Path) -> None:
    (album / "0.png").write_bytes(b"junk")
    (album / "empty.jpg").write_bytes(b"")
    done = ipg("predict", photos / "plain", album, "--output", "new/labels.csv")
    assert done.code == 1
    assert "11 of 13 images classified; new/labels.csv has a line for each" in done.out
    assert len(rows("new/labels.csv")) == 13
    assert "  empty.jpg: it is empty" in done.out
    errors = {row["path"]: row for row in rows("new/labels.csv") if row["error"]}
    assert list(errors) == ["0.png", "empty.jpg"]
    assert "no image of a known format" in errors["0.png"]["error"]
    assert errors["0.png"]["predicted"] == errors["0.png"]["p_above"] == ""
    assert [entry.name for entry in Path("new").iterdir()] == ["labels.csv"]


def test_a_table_names_images_that_are_missing_or_outside(ipg, photos: Path, album: Path) -> None:
    Path("list.csv").write_text("path\n1.png\nnone.png\n../album/2.png\n/etc/hostname\n")
    done = ipg("predict", photos / "plain", "list.csv", "--data-path", album)
    assert done.code == 1
    found = rows("predictions.csv")
    assert [bool(row["error"]) for row in found] == [False, True, True, True]
    assert found[1]["error"] == "there is no such file"
    assert "is not inside" in found[3]["error"]


def test_the_column_that_names_the_images_may_be_called_otherwise(ipg, photos: Path, album: Path) -> None:
    Path("list.csv").write_text("number;file name\n7;1.png\n8;2.png\n")
    named = ("list.csv", "--data-path", album, "--path-column", "file name")
    done = ipg("predict", photos / "plain", *named)
    assert done.code == 0, done
    assert [row["path"] for row in rows("predictions.csv")] == ["1.png", "2.png"]


def test_a_run_knows_what_its_own_table_calls_the_column(ipg, photos: Path, tmp_path: Path) -> None:
    table = (photos / "photos.csv").read_text().replace("path,", "file,", 1)
    (tmp_path / "own.csv").write_text(table)
    train = ("train", "--data", "own.csv", "--data-path", photos, "--path-column", "file", "--size", 16)
    done = ipg(*train, "--model", "small_cnn", "--method", "erm", "--epochs", 1, "--output", "own")
    assert done.code == 0, done
    assert ipg("predict", "own", "own.csv", "--data-path", photos).code == 0
    assert ipg("predict", "own", photos / "photos.csv", "--output", "other.csv").code == 0  # which has a column path
    assert rows("predictions.csv") == rows("other.csv")
    Path("both.csv").write_text("path,file\nnone.png,images/test0.png\n")
    assert ipg("predict", "own", "both.csv", "--data-path", photos, "--output", "both-said.csv").code == 0
    assert [row["path"] for row in rows("both-said.csv")] == ["images/test0.png"]


def test_a_zip_and_one_image(ipg, photos: Path, album: Path) -> None:
    with zipfile.ZipFile("album.zip", "w") as archive:
        archive.write(album / "1.png", "album/1.png")
    assert ipg("predict", photos / "plain", "album.zip", "--output", "zip.csv").code == 0
    assert ipg("predict", photos / "plain", album / "1.png", "--output", "one.csv").code == 0
    (zipped,), (one,) = rows("zip.csv"), rows("one.csv")
    assert zipped | {"path": ""} == one | {"path": ""}


def test_images_of_two_channels_are_the_red_and_green_of_files(ipg, embedded_runs: Path, album: Path) -> None:
    done = ipg("predict", embedded_runs / "guided", album)
    assert done.code == 0, done
    assert "p_footwear or bag" in rows("predictions.csv")[0]


def test_to_standard_output(ipg, photos: Path, album: Path) -> None:
    assert ipg("predict", photos / "plain", album).code == 0
    for output in ("-", "/dev/stdout"):
        done = ipg("predict", photos / "plain", album, "--output", output)
        assert done.code == 0, done
        assert done.out == Path("predictions.csv").read_text()
        assert "12 of 12 images classified\n" in done.err


def test_a_pipe_is_written_to_as_it_is(ipg, photos: Path, album: Path) -> None:
    done = ipg("predict", photos / "plain", album, "--output", os.devnull)
    assert done.code == 0, done
    assert not Path(os.devnull).is_file()


def test_a_file_that_is_there_is_replaced_when_asked(ipg, photos: Path, album: Path) -> None:
    Path("predictions.csv").write_text("mine")
    assert ipg("predict", photos / "plain", album, "--force").code == 0
    assert len(rows("predictions.csv")) == 12


def test_files_that_are_passed_over_are_counted(ipg, photos: Path, album: Path) -> None:
    (album / "a.heic").write_bytes(b"")
    done = ipg("predict", photos / "plain", album)
    assert done.code == 0, done
    assert "1 file is passed over, since images that end in .heic are not read" in done.out


def test_what_cannot_be_is_said(assert_refused, photos: Path, album: Path, finished: Path, tmp_path: Path) -> None:
    run = photos / "plain"
    assert_refused("predict", "nowhere", album, says=("nowhere is not the folder of a run",))
    assert_refused("predict", run, "nowhere", says=("there is nothing at nowhere",))
    (tmp_path / "empty").mkdir()
    assert_refused("predict", run, "empty", says=("empty has no image in it",))
    assert_refused("predict", run, album, "--data-path", album, says=("--data-path is for a table",))
    Path("none.csv").write_text("image\na.png\n")
    assert_refused("predict", run, "none.csv", says=("has no column path", "is it --path-column image?"))
    assert_refused(
        "predict", run, "none.csv", "--path-column", "file", says=("has no column file", "--path-column image?")
    )
    assert_refused("predict", run, album, "--path-column", "file", says=("is no table", "leave --path-column out"))
    Path("photo.heic").write_bytes(b"heic")
    assert_refused("predict", run, "photo.heic", says=("of no format that is read", ".png", ".csv", "zip"))
    Path("predictions.csv").write_text("mine")
    assert_refused("predict", run, album, says=("predictions.csv exists", "--output", "--force"))
    assert_refused("predict", run, album, "--output", "empty", says=("empty is a folder", "empty/predictions.csv"))
    assert_refused("predict", run, "nowhere", says=("there is nothing at nowhere",))  # before the output
    assert_refused("predict", "nowhere", album, says=("nowhere is not the folder of a run",))
    assert Path("predictions.csv").read_text() == "mine"
    (finished / "done").unlink()
    assert_refused("predict", finished, album, "--output", "a.csv", says=("is not finished",))
    assert not Path("a.csv").exists()


def test_damaged_weights_are_named(assert_refused, finished: Path, album: Path) -> None:
    (finished / "model.safetensors").write_bytes(b"junk")
    assert_refused("predict", finished, album, says=("model.safetensors is damaged",))
    assert not Path("predictions.csv").exists()
