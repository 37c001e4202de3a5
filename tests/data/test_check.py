import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from ipg.data.check import Report, check_files, check_table
from ipg.data.folder import read
from ipg.data.reading import Reading
from ipg.data.table import ImageTable

Write = Callable[..., Path]


@pytest.fixture
def photos(tmp_path: Path, picture, put, write_csv) -> Write:
    """Writes 24 images and a table: label by twos, attribute, split and content as functions of the number."""

    def write(*, attribute=None, split=lambda n: ("train", "validation", "test")[n // 8], image=lambda n: n) -> Path:
        columns = {"path": lambda n: f"{n:02d}.png", "label": lambda n: ("cat", "dog")[n % 2], "split": split}
        if attribute is not None:
            columns["attribute"] = attribute
        for n in range(24):
            put(tmp_path / f"{n:02d}.png", picture(image(n)))
        rows = [[make(n) for make in columns.values()] for n in range(24)]
        return write_csv(tmp_path / "photos.csv", list(columns), rows)

    return write


def names(report: Report) -> dict[str, tuple[str, ...]]:
    return {finding.name: finding.items for finding in report.findings}


def test_counts(photos: Write) -> None:
    report = check_files(read(photos(attribute=lambda n: ("red", "blue")[n // 2 % 2])), size=16)
    assert report.shape == (3, 16, 16)
    assert report.counts.tolist() == [[[2, 2], [2, 2]]] * 3
    assert not report.broken
    plain = json.loads(json.dumps(report.to_json()))
    assert (plain["data"], plain["images"], plain["broken"]) == ("photos", 24, False)
    assert {"split": "test", "label": "dog", "attribute": "red", "images": 2} in plain["counts"]
    assert len(plain["counts"]) == 12
    groups = {"small groups in validation", "small groups in test"}
    assert {finding["name"] for finding in plain["findings"]} == {"edges cut off"} | groups


def test_unreadable_images(photos: Write) -> None:
    table = photos()
    (table.parent / "03.png").write_bytes(b"")
    (table.parent / "09.png").write_bytes((table.parent / "09.png").read_bytes()[:70])
    report = check_files(read(table), size=16)
    assert report.broken
    (finding,) = [finding for finding in report.findings if finding.severity == "error"]
    assert [item.partition(":")[0] for item in finding.items] == ["03.png", "09.png"]
    assert report.shape is None
    assert int(report.counts.sum()) == 24


def test_files_that_are_smaller_than_the_images(photos: Write, tmp_path: Path, picture, put) -> None:
    (found,) = [finding for finding in check_files(read(photos())).findings if finding.name == "small images"]
    assert found.meaning == "Most files are 24 by 16 pixels and are enlarged to 224: `--size 16` trains faster on them."
    for n in range(24):
        put(tmp_path / f"{n:02d}.png", picture(n, size=(30 + n, 300) if n < 20 else (300, 300)))
    put(tmp_path / "00.png", b"")
    (found,) = [finding for finding in check_files(read(tmp_path / "photos.csv")).findings if "small i" in finding.name]
    assert found.meaning.startswith("Most files have sides of about 42 pixels or less and are enlarged to 224")
    for n in range(14):
        put(tmp_path / f"{n:02d}.png", picture(n, size=(300, 300)))
    assert "small images" not in names(check_files(read(tmp_path / "photos.csv")))


def test_copies_across_splits_with_two_labels_and_in_one_split(photos: Write) -> None:
    same = {8: 0, 3: 2, 6: 4}  # another split; another label; the same
    found = names(check_files(read(photos(image=lambda n: same.get(n, n))), size=16))
    assert found["images in two splits"] == ("00.png (train) = 08.png (validation)",)
    assert found["images with two labels"] == ("02.png (train) = 03.png (train)",)
    assert found["images that come twice"] == ("04.png (train) = 06.png (train)",)
    assert "images alike in two splits" not in found


def test_copies_saved_anew(photos: Write, picture) -> None:
    table = photos()
    (table.parent / "01.png").write_bytes(picture(1, size=(200, 150)))
    (table.parent / "20.png").write_bytes(picture(1, size=(200, 150), kind="JPEG", quality=90))
    found = names(check_files(read(table), size=32))
    assert found["images alike in two splits"] == ("01.png (train) = 20.png (test)",)


def test_a_perfect_shortcut_and_its_empty_groups(photos: Write) -> None:
    report = check_files(read(photos(attribute=lambda n: n % 2 if n < 8 else n // 2 % 2)), size=8)
    assert names(report)["groups without a training image"] == ("cat, 1", "dog, 0")
    (finding,) = [finding for finding in report.findings if finding.name == "perfect shortcut"]
    assert "100% of 'cat' are '0', of the other classes 0%" in finding.meaning
    assert "gives away every label" in finding.meaning


def test_without_attributes_or_given_splits(photos: Write) -> None:
    report = check_files(read(photos(split=lambda n: "train"), reading=Reading(5)), size=8)
    found = {finding.name: finding.meaning for finding in report.findings}
    assert "the worst group is the worst class" in found["no group labels"]
    assert found["as read"].startswith("Drawn by --split-seed 5 from the training images")
    assert names(report)["small groups in test"] == ("cat", "dog")


def test_groups_that_selection_and_tests_do_not_see(photos: Write) -> None:
    def attribute(n: int) -> int:
        return n // 2 % 2 if n < 8 else 0 if n < 16 else 1

    found = names(check_files(read(photos(attribute=attribute)), size=8))
    assert found["groups without a validation image"] == ("cat, 1", "dog, 1")
    assert found["groups without a test image"] == ("cat, 0", "dog, 0")


@pytest.fixture
def bars(make_table) -> ImageTable:
    return make_table(train=2000, validation=1000, test=1000, agreement=0.5)


def test_a_table_with_nothing_to_say(bars: ImageTable) -> None:
    report = check_table(bars)
    assert report.findings == ()
    assert int(report.counts.sum()) == 4000


def test_a_shortcut_that_does_not_change_the_most_likely_class(bars: ImageTable) -> None:
    """As in CelebA: men are hardly ever blond, but most women are not blond either."""
    n = len(bars)
    label = (torch.arange(n) % 8 == 0).long()
    report = check_table(replace(bars, label=label, attribute=torch.where(label == 1, 0, torch.arange(n) // 8 % 2)))
    (finding,) = [finding for finding in report.findings if finding.name == "shortcut"]
    assert "100% of 'bottom' are 'red', of the other classes 50%" in finding.meaning


def test_classes_and_splits_without_images(bars: ImageTable) -> None:
    no_class = check_table(replace(bars, classes=("top", "bottom", "middle")))
    assert names(no_class)["classes without a training image"] == ("middle",)
    assert not no_class.broken
    train_alone = check_table(bars.part("train"))
    assert {"no validation image", "no test image"} <= set(names(train_alone))
    nothing = check_table(bars.part("test"))
    assert nothing.broken
    assert names(nothing) == {"no training image": ()}


def test_the_size_of_a_group_in_points(bars: ImageTable) -> None:
    keep = torch.ones(len(bars), dtype=torch.bool)
    rows = torch.nonzero((bars.split == 2) & (bars.group == 1)).flatten()
    keep[rows[44:]] = False
    report = check_table(bars.take(keep))
    (finding,) = report.findings
    assert (finding.name, finding.items) == ("small groups in test", ("top, green",))
    assert "2.3 points" in finding.meaning


def test_labels_that_cannot_be_learnt(tmp_path: Path, picture, put, write_csv) -> None:
    files = [f"{n:02d}.png" for n in range(12)]
    for n, name in enumerate(files):
        put(tmp_path / name, picture(n))
    wrong = write_csv(tmp_path / "wrong.csv", ("path", "label"), list(zip(files, files, strict=True)))
    report = check_files(read(wrong), size=8)
    assert report.broken
    (finding,) = [finding for finding in report.findings if finding.severity == "error"]
    assert finding.meaning.startswith("Nearly as many labels as images: is `label` the right column?")
    labels = ["Cat", "cat", "dog"] * 4
    report = check_files(
        read(write_csv(tmp_path / "case.csv", ("path", "label"), list(zip(files, labels, strict=True)))), size=8
    )
    assert not report.broken
    (finding,) = [finding for finding in report.findings if finding.name == "labels nearly alike"]
    assert finding.items == ("'Cat' = 'cat'",)


def test_groups_that_are_of_one_label_each_are_no_shortcut(photos: Write) -> None:
    place = photos(attribute=lambda n: ("tabby", "husky", "manx", "husky", "siam", "poodle")[n % 6])
    place.write_text(place.read_text().replace("attribute", "group"))
    report = check_files(read(place), size=8)
    found = names(report)
    assert not {"shortcut", "perfect shortcut"} & found.keys()
    assert "groups without a training image" not in found
    cells = {(row["label"], row["attribute"]) for row in report.to_json()["counts"]}
    assert cells == {("cat", f"group {n}") for n in (1, 2, 3)} | {("dog", f"group {n}") for n in (1, 2)}
    assert any("manx is group 1 of cat" in finding.meaning for finding in report.findings)


@pytest.mark.parametrize(
    ("width", "height", "share"), [(60, 90, "33%"), (90, 60, "33%"), (160, 40, "75%"), (80, 60, None), (60, 60, None)]
)
def test_files_of_which_much_is_cut_off(tmp_path: Path, write_csv, width: int, height: int, share: str | None) -> None:
    for number in range(6):
        Image.new("RGB", (width, height), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [(f"{number}.png", ("cat", "dog")[number % 2]) for number in range(6)]
    write_csv(tmp_path / "photos.csv", ["path", "label"], rows)
    found = [one for one in check_files(read(tmp_path / "photos.csv")).findings if one.name == "edges cut off"]
    assert len(found) == (share is not None)
    for one in found:
        assert one.severity == "note"
        assert f"are {width} by {height} pixels: the square in their middle is kept, and {share} of" in one.meaning


def test_the_worst_comes_first(photos: Write, tmp_path: Path) -> None:
    path = photos(image=lambda n: 0 if n == 8 else n)
    (tmp_path / "03.png").write_bytes(b"")
    report = check_files(read(path))
    order = [("error", "warning", "note").index(finding.severity) for finding in report.findings]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}
