"""`ipg data`: list, check, cache, prepare and fetch."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ipg.cli.data import ABOUT
from ipg.data import mnist
from ipg.data.load import DATASETS


def test_list_names_every_data_set_and_what_it_needs(ipg) -> None:
    done = ipg("data", "list")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert list(ABOUT) == list(DATASETS)
    for name, (_, files) in ABOUT.items():
        assert any(line.startswith(f"│ {name} ") and files in line for line in done.out.splitlines())


def test_check_counts_groups_and_names_the_empty_ones(ipg) -> None:
    done = ipg("data", "check", "colored-fashion")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.out.startswith("colored_fashion: 20,000 images of 2×14×14")
    counts = {
        cells[0].strip(): [int(cell.replace(",", "")) for cell in cells[1:]]
        for line in done.out.splitlines()
        if line.startswith("│") and len(cells := line.strip("│").split("│")) == 4
    }
    assert counts["all"] == [12_000, 2_000, 6_000]
    assert counts["garment"][0] + counts["footwear or bag"][0] == 12_000
    assert "groups without a training image (2)\n  Reweighting groups cannot help there; pairs can.\n" in done.out
    assert "    garment, green\n    footwear or bag, red\n" in done.out


def test_check_is_silent_where_every_group_has_images(ipg, bars: list[str]) -> None:
    assert "without a training image" not in ipg("data", "check", "bars", "--seed", "3").out


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with 12 cats and 12 dogs, and a table of them."""
    for number in range(24):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((32, 32)).save(path)
    rows = [f"{('cat', 'dog')[n % 2]}/{n:02d}.png,{n % 2},{n // 2 % 2}" for n in range(24)]
    (tmp_path / "photos" / "labels.csv").write_text("\n".join(["path,label,attribute", *rows]))
    return tmp_path / "photos"


def test_check_of_ones_own_images(ipg, photos: Path) -> None:
    done = ipg("data", "check", "photos", "--size", "16")
    assert done.code == 0
    assert done.out.startswith("photos: 24 images of 3×16×16")
    assert "Drawn by --split-seed 0 from the training images" in done.out
    assert "no group labels" in done.out
    table = ipg("data", "check", photos / "labels.csv", "--size", "16", "--json")
    report = json.loads(table.out)
    assert (report["data"], report["images"], report["broken"]) == ("labels", 24, False)


def test_check_of_broken_images_exits_with_1(ipg, photos: Path) -> None:
    (photos / "cat" / "04.png").write_bytes(b"no image")
    (photos / "dog" / "05.png").write_bytes((photos / "dog" / "07.png").read_bytes())
    done = ipg("data", "check", "photos/labels.csv", "--size", "16")
    assert done.code == 1
    assert "✗ unreadable images (1)" in done.out
    assert "cat/04.png: it is no image of a known format" in done.out
    assert "dog/05.png (" in done.out
    assert max(map(len, done.out.splitlines())) <= 110  # names are not broken
    shown = json.loads(ipg("data", "check", "photos/labels.csv", "--json").out)
    assert shown["broken"]
    assert shown["findings"][0]["items"] == ["cat/04.png: " + shown["findings"][0]["items"][0].partition(": ")[2]]


def test_check_of_a_broken_table_names_everything(ipg, assert_refused, photos: Path) -> None:
    table = photos / "labels.csv"
    table.write_text(table.read_text() + "\n" + "\n".join(f"none/{n}.png,1,0" for n in range(40)))
    done = ipg("data", "check", "photos/labels.csv")
    assert done.code == 1
    assert "photos/labels.csv cannot be used: 40 problems" in done.out
    assert done.out.count("there is no image") == 5
    assert "… and 35 more like these; --json names all" in done.out
    report = json.loads(ipg("data", "check", "photos/labels.csv", "--json").out)
    assert (report["broken"], len(report["problems"])) == (True, 40)
    assert_refused(
        "train", "--data", "photos/labels.csv", says=("there is no image 'none/0.png'", "… and 36 more mistakes")
    )


def test_problems_fit_a_narrow_terminal(ipg, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table = photos / "labels.csv"
    table.write_text(table.read_text() + "\n../../elsewhere/1.png,1,0")
    lines = ipg("data", "check", "photos/labels.csv").out.splitlines()
    end = lines.index("What follows is of the other rows.")
    assert [line[:4] for line in lines[1:end]] == ["  ph", *["    "] * (end - 2)]
    assert max(map(len, lines[:end])) <= 60
    assert "and may not lead out of it" in " ".join(" ".join(lines[:end]).split())


def test_every_kind_of_problem_is_named(ipg, photos: Path) -> None:
    table = photos / "labels.csv"
    wrong = [*(f"none/{n}.png,1,0" for n in range(9)), *("cat/04.png,1,0",) * 2, "cat/06.png,,0"]
    table.write_text(table.read_text() + "\n" + "\n".join(wrong))
    out = " ".join(ipg("data", "check", "photos/labels.csv").out.split())
    assert [out.count(part) for part in ("there is no image", "is there already", ": no label")] == [5, 3, 1]
    assert out.count("more like these") == 1


def test_check_goes_on_with_the_rows_that_can_be_used(ipg, photos: Path) -> None:
    table = photos / "labels.csv"
    table.write_text(table.read_text().replace("cat/06.png,0,1", "cat/none.png,0,1") + "\ndog/05.png,1,0")
    (photos / "cat" / "04.png").write_bytes((photos / "cat" / "04.png").read_bytes()[:60])  # cut off
    done = ipg("data", "check", "photos/labels.csv", "--size", "16")
    assert done.code == 1
    out = " ".join(done.out.split())
    assert "photos/labels.csv cannot be used: 2 problems" in out
    assert "there is no image 'cat/none.png'" in out
    assert "'dog/05.png' is there already" in out
    assert "What follows is of the other rows. labels: 23 images" in out
    assert "✗ unreadable images (1)" in out
    assert "cat/04.png: " in out
    report = json.loads(ipg("data", "check", "photos/labels.csv", "--size", "16", "--json").out)
    assert (report["broken"], len(report["problems"]), report["images"]) == (True, 2, 23)
    assert report["findings"][0]["name"] == "unreadable images"
    rows = table.read_text().splitlines()
    table.write_text("\n".join([rows[0], *(row for row in rows if row.startswith(("cat/0", "cat/n")))]))
    out = ipg("data", "check", "photos/labels.csv").out  # one class is no data set
    assert "1 problem" in out
    assert "What follows" not in out


def test_a_named_layout_is_looked_at_beyond_what_is_wrong_with_it(ipg, photos: Path) -> None:
    """Also its other images: one that cannot be decoded is told beside one that is missing."""
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    lines = ["img_filename,y,split,place", "none.png,0,0,0"]
    lines += [f"{name},{number % 2},{number % 3},{number % 2}" for number, name in enumerate(names)]
    (photos / "metadata.csv").write_text("\n".join(lines))
    (photos / names[0]).write_bytes(b"no image")
    done = ipg("data", "check", "waterbirds", "--data-path", "photos", "--size", "16")
    assert done.code == 1
    assert "there is no image 'none.png'" in " ".join(done.out.split())
    assert "What follows is of the other rows." in done.out
    assert "unreadable images (1)" in done.out
    told = json.loads(ipg("data", "check", "waterbirds", "--data-path", "photos", "--size", "16", "--json").out)
    assert told["images"] == len(names)
    assert len(told["problems"]) == 1


def test_paths_from_the_working_directory_are_told_in_a_line(ipg, photos: Path) -> None:
    table = photos / "labels.csv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *(f"photos/{row}" for row in rows)]))
    done = ipg("data", "check", "photos/labels.csv")
    assert (done.code, len(done.out.splitlines())) == (1, 3)  # the second is wrapped
    assert "say --data-path ." in " ".join(done.out.split())
    assert ipg("data", "check", "photos/labels.csv", "--data-path", ".").code == 0


def test_files_that_are_smaller_than_the_images(ipg, photos: Path) -> None:
    out = " ".join(ipg("data", "check", "photos/labels.csv").out.split())
    assert "pixels and are enlarged to 224: `--size" in out
    assert "enlarged" not in ipg("data", "check", "photos/labels.csv", "--size", "16").out


def test_check_of_data_that_is_not_there(assert_refused) -> None:
    assert_refused(
        "data", "check", "waterbirds100", says=("no waterbirds100 at", "IPG_DATA", "ipg data prepare waterbirds")
    )
    assert_refused("data", "check", "celeba", "--data-path", "none", says=("no celeba at none", "img_align_celeba.zip"))
    assert_refused("data", "check", "photos/none.csv", says=("there is no table photos/none.csv",))


def test_many_classes_do_not_fill_the_screen(ipg, make_table, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"class {number}" for number in range(200))
    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: replace(make_table(), classes=names))
    done = ipg("data", "check", "bars")
    assert "more lines; --json has all" in done.out
    assert len(done.out.splitlines()) < 150


def test_cache(ipg, photos: Path) -> None:
    assert ipg("data", "cache").out.startswith("no decoded images in ")
    assert ipg("data", "check", "photos", "--size", "16").code == 0
    shown = ipg("data", "cache")
    assert shown.code == 0
    assert "photos" in shown.out
    cleared = ipg("data", "cache", "--clear")
    assert (cleared.code, "MB freed in" in cleared.out) == (0, True)
    assert ipg("data", "cache").out.startswith("no decoded images in ")


def test_prepare_waterbirds(ipg, assert_refused) -> None:
    line = ["data", "prepare", "waterbirds", "--cub", "cub", "--places", "places", "--output", "out"]
    assert_refused(*line, "--correlation", "2", says=("correlation=2.0", "from 0 to 1"))
    assert_refused(*line, says=("there is no folder segmentations in cub",))
    folders = ("b/bamboo_forest", "f/forest/broadleaf", "o/ocean", "l/lake/natural")
    for folder in ("cub/images/001.Albatross", "cub/segmentations/001.Albatross", *(f"places/{f}" for f in folders)):
        Path(folder).mkdir(parents=True)
    for n in range(8):
        Image.new("RGB", (8, 8), (n, n, n)).save(f"cub/images/001.Albatross/{n}.jpg")
        Image.new("L", (8, 8)).save(f"cub/segmentations/001.Albatross/{n}.png")
        for folder in folders:
            Image.new("RGB", (8, 8)).save(f"places/{folder}/{n}.jpg")
    Path("cub/images.txt").write_text("".join(f"{n} 001.Albatross/{n}.jpg\n" for n in range(8)))
    Path("cub/train_test_split.txt").write_text("".join(f"{n} {n % 2}\n" for n in range(8)))
    done = ipg(*line, "--correlation", "1")
    assert (done.code, done.out) == (0, "made: ipg data check waterbirds100 --data-path out\n")
    assert ipg(*done.out.split()[2:], "--size", "8").code == 0


def test_prepare_celeba(ipg, assert_refused) -> None:
    line = ["data", "prepare", "celeba", "--archives", "downloads", "--output", "out"]
    assert_refused(*line, says=("there is no folder downloads", "img_align_celeba.zip"))
    Path("downloads").mkdir()
    Path("downloads/list_attr_celeba.txt").write_text("1\nBlond_Hair Male\n000001.jpg 1 -1\n")
    Path("downloads/list_eval_partition.txt").write_text("000001.jpg 0\n")
    with zipfile.ZipFile("downloads/img_align_celeba.zip", "w") as archive:
        archive.writestr("img_align_celeba/000001.jpg", b"bytes")
    done = ipg(*line)
    assert (done.code, done.out) == (0, "made: ipg data check celeba --data-path out\n")
    assert Path("out/img_align_celeba/000001.jpg").read_bytes() == b"bytes"


def fake_download(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[str]:
    """Stand in for the network; returns the addresses asked for."""
    asked: list[str] = []

    def download(url: str, name: str, progress, timeout: float) -> bytes:
        asked.append(url)
        if fails:
            raise urllib.error.URLError("no route to host")
        progress(name, 3, 6)
        progress(name, 6, 6)
        return name.encode()

    monkeypatch.setattr(mnist, "_download", download)
    monkeypatch.setattr(mnist, "MD5", {name: hashlib.md5(name.encode()).hexdigest() for name in mnist.MD5})
    return asked


def test_fetch_puts_the_four_files_where_it_says(ipg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_download(monkeypatch)
    done = ipg("data", "fetch", "mnist", "--folder", "data/mnist")
    assert (done.code, done.out) == (0, "MNIST is in data/mnist\n")  # no bar where there is no terminal
    assert sorted(path.name for path in (tmp_path / "data" / "mnist").iterdir()) == sorted(mnist.MD5)
    assert len(asked) == 4
    again = ipg("data", "fetch", "mnist", "--folder", "data/mnist")
    assert (again.code, len(asked)) == (0, 4)


def test_fetch_goes_to_the_folder_where_loading_looks(ipg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_download(monkeypatch)
    assert ipg("data", "fetch", "mnist").out == f"MNIST is in {tmp_path / 'no-mnist'}\n"


def test_fetch_without_a_network(assert_refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_download(monkeypatch, fails=True)
    says = ("train-images-idx3-ubyte.gz could not be downloaded", "no route to host", "Check the network", "IPG_MNIST")
    assert_refused("data", "fetch", "mnist", "--folder", "data", says=says)
    assert len(asked) == len(mnist.MIRRORS)
    assert list((tmp_path / "data").iterdir()) == []


def test_one_problem_is_one_problem(ipg, photos: Path) -> None:
    table = photos / "labels.csv"
    table.write_text(table.read_text() + "\nnone/0.png,1,0")
    assert "photos/labels.csv cannot be used: 1 problem\n" in ipg("data", "check", "photos/labels.csv").out


def test_a_wrong_column_for_the_label(ipg, assert_refused, photos: Path) -> None:
    names = [f"{('cat', 'dog')[n % 2]}/{n:02d}.png,{n}" for n in range(24)]
    (photos / "wrong.csv").write_text("\n".join(["path,label", *names]))
    done = ipg("data", "check", "photos/wrong.csv", "--size", "16")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "Nearly as many labels as images: is `label` the right column? There are 24 labels for 24" in said
    says = ("nearly as many labels as images: is `label` the right column?",)
    assert_refused("train", "--data", "photos/wrong.csv", "--size", "16", says=says)


def test_a_folder_called_like_a_data_set(ipg, assert_refused, photos: Path, tmp_path: Path) -> None:
    for name in ("celeba", "waterbirds", "folder", "colored_mnist"):
        photos = photos.rename(tmp_path / name)
        assert_refused("data", "check", name, says=(f"write ./{name}",))
        assert ipg("data", "check", f"./{name}", "--size", "8").code == 0


def test_the_seed_of_the_split(ipg, photos: Path) -> None:
    for number in range(2, 24, 4):  # copies are named with their splits, which are drawn
        (photos / "cat" / f"{number:02d}.png").write_bytes((photos / "cat" / f"{number - 2:02d}.png").read_bytes())
    found = [
        ipg("data", "check", "photos/labels.csv", "--size", "8", "--json", *options).out
        for options in ((), ("--seed", "3"), ("--split-seed", "3"))
    ]
    assert found[0] == found[1]
    items = [
        next(finding["items"] for finding in json.loads(out)["findings"] if finding["name"] == "images that come twice")
        for out in found
    ]
    assert items[0] != items[2]
    assert "Drawn by --split-seed 3 from the training images" in found[2]
