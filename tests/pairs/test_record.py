import json
from pathlib import Path

import pytest

from ipg.data.errors import DataError
from ipg.pairs.record import RECORD, claim, placed, read_record, size_of

SETTINGS = {"builder": "random", "data": "colored_fashion", "seed": 0, "size": 14, "count": 8}


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    claim(tmp_path / "p", "train", SETTINGS, "digest")
    assert read_record(tmp_path / "p") == {"train": {"settings": SETTINGS, "pairs": "digest"}}
    claim(tmp_path / "p", "train", SETTINGS, "digest")
    assert (size_of(tmp_path / "p", "train"), size_of(tmp_path / "p", "validation")) == (14, None)
    with pytest.raises(DataError, match="pairs of other images"):
        claim(tmp_path / "p", "train", SETTINGS, "other")


@pytest.mark.parametrize("name", ["config.json", "holiday.jpg", "images"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"is not empty and not a folder of pairs \(it holds {name}\); name another"):
        claim(tmp_path, "train", SETTINGS, "digest")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "[]", json.dumps({"version": 3}), json.dumps({"train": {"settings": 3}})]
)
def test_a_record_of_something_else_is_not_advised_to_be_deleted(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(DataError, match=r"holds a build\.json that is not of pairs; name another --output"):
        claim(tmp_path, "train", SETTINGS, "digest")
    assert (tmp_path / RECORD).read_text() == text
    assert size_of(tmp_path, "train") is None


def test_a_sheet_beside_pairs_is_no_stranger(tmp_path: Path) -> None:
    claim(tmp_path, "train", SETTINGS, "digest")
    (tmp_path / "sheet.html").touch()
    claim(tmp_path, "validation", SETTINGS, "digest")
    assert set(read_record(tmp_path)) == {"train", "validation"}


def test_paths_in_full_and_names_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "celeba").mkdir()
    (tmp_path / "photos").mkdir()
    assert placed("photos") == str(tmp_path / "photos")
    assert placed("./celeba") == str(tmp_path / "celeba")
    assert [placed(name) for name in ("celeba", "folder", "none.csv")] == ["celeba", "folder", "none.csv"]


def test_records_of_before_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their paths were as typed, and the seed drew the split."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    claim(tmp_path / "p", "train", SETTINGS | {"data": "photos", "seed": 3}, "digest")
    now = SETTINGS | {"data": str(tmp_path / "photos"), "seed": 3}
    claim(tmp_path / "p", "train", now, "digest")
    claim(tmp_path / "p", "train", now | {"split_seed": 3}, "digest")
    with pytest.raises(DataError, match=r"made otherwise \(split_seed 3, now 0\)"):
        claim(tmp_path / "p", "train", now | {"split_seed": 0}, "digest")
    with pytest.raises(DataError, match=r"holds train pairs that were made otherwise \(split_seed 3, now 0\)"):
        claim(tmp_path / "p", "validation", now | {"split_seed": 0, "count": 5}, "digest")
    with pytest.raises(DataError, match=r"\(label_column None, now y\)"):
        claim(tmp_path / "p", "validation", now | {"label_column": "y"}, "digest")
