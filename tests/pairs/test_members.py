from pathlib import Path

import pytest

from ipg.data.errors import DataError
from ipg.pairs.members import read_for
from ipg.pairs.rows import Manifest, Pair

PAIRS = [("data:photos/a.png", "images/1.png"), ("data:photos/b.png", "images/2.png")]


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    monkeypatch.chdir(tmp_path)
    pairs = tuple(Pair(first, second, "cat", "train") for first, second in PAIRS)
    return Manifest(tmp_path / "pairs" / "manifest.csv", pairs)


def table(path: Path, *names: str, columns: str = "image,label") -> Path:
    rows = (f"{name},{number}" for number, name in enumerate(names))
    path.write_text("\n".join([columns, *rows]), encoding="utf-8")
    return path


def labels(manifest: Manifest, *paths: Path, home: Path | None = None) -> dict[str, int]:
    said = read_for(manifest, paths, home)[0].label
    assert said is not None
    assert not callable(said)
    return {name: int(number) for name, number in said.items()}


def test_every_spelling_of_a_member(manifest: Manifest, tmp_path: Path) -> None:
    home = tmp_path / "data"
    expected = {"data:photos/a.png": 0, "images/1.png": 1}
    for first, second in (
        ("data:photos/a.png", "images/1.png"),  # as the manifest has them
        ("photos/a.png", "./images/1.png"),
        ("data/photos/a.png", "pairs/images/1.png"),  # from the current folder
        (str(home / "photos/a.png"), str(tmp_path / "pairs/images/1.png")),
    ):
        assert labels(manifest, table(tmp_path / "p.csv", first, second), home=home) == expected


def test_names_from_another_folder(manifest: Manifest, tmp_path: Path) -> None:
    paths = table(tmp_path / "p.csv", "1.png", "3.png"), table(tmp_path / "q.csv", "c.png", "a.png")
    opinions, coverage = read_for(manifest, paths, tmp_path / "data")
    assert opinions.label is not None
    assert not callable(opinions.label)
    assert {name: int(number) for name, number in opinions.label.items()} == {"images/1.png": 0, "data:photos/a.png": 1}
    assert (coverage.covered, coverage.members, coverage.asked, coverage.pairs) == (2, 4, 1, 2)
    assert coverage.folders == (tmp_path / "pairs/images", tmp_path / "data/photos")


def test_a_link_is_the_file_that_it_leads_to(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "pairs/images").mkdir(parents=True)
    (tmp_path / "pairs/images/1.png").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "pairs")
    names = ("linked/images/1.png", "photos/a.png")
    assert set(labels(manifest, table(tmp_path / "p.csv", *names))) == {"images/1.png", "data:photos/a.png"}


def test_files_that_say_nothing(manifest: Manifest, tmp_path: Path) -> None:
    path = table(tmp_path / "p.csv", "x.png", "y.png")
    says = r"p\.csv: it says nothing of any member of .*manifest\.csv\. It names 'x\.png', the manifest 'data:photos/a"
    with pytest.raises(DataError, match=says):
        read_for(manifest, [path], tmp_path / "data")
    path = table(tmp_path / "p.csv", "1.png", "2.png")
    says = "predictions cover 2 of 4 members, but both members of no pair.*'data:photos/a.png' is missing"
    with pytest.raises(DataError, match=says):
        read_for(manifest, [path], tmp_path / "data")


def test_names_that_fit_two_folders(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "manifest.csv", (Pair("cat/1.png", "dog/1.png", "cat", "train"),))
    with pytest.raises(DataError, match=r"p\.csv: its names fit images in .*cat and in .*dog alike"):
        read_for(manifest, [table(tmp_path / "p.csv", "1.png")])


def test_files_of_other_columns(manifest: Manifest, tmp_path: Path) -> None:
    one = table(tmp_path / "p.csv", "images/1.png", columns="image,hat")
    other = tmp_path / "q.csv"
    other.write_text("image,hat,beard\ndata:photos/a.png,1,0\n")
    with pytest.raises(DataError, match=r"q\.csv has other columns than .*p\.csv"):
        read_for(manifest, [one, other])
