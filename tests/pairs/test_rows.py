import importlib
from pathlib import Path

import pytest

from ipg.data.errors import DataError, ProblemsError
from ipg.pairs.rows import COLUMNS, Manifest, Pair

PAIRS = (
    Pair(
        "data:a.png", "images/0.png", "disc", "train", "background", made_of=("a.png", "b, c.png"), mask="masks/0.png"
    ),
    Pair("one.png", "two.png", "1", "validation", score=0.25, status="rejected", reason='says "no"; twice'),
    Pair("x.png", "y.png", "disc", "train", label_first="disc", label_second="disc", extra={"note": "mine"}),
)


def write(folder: Path, text: str) -> Path:
    path = folder / "manifest.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = Manifest(tmp_path / "manifest.csv", PAIRS).write()
    read = Manifest.read(written)
    assert [(pair.first, pair.second, pair.label, pair.split, pair.builder) for pair in read.pairs] == [
        (pair.first, pair.second, pair.label, pair.split, pair.builder) for pair in PAIRS
    ]
    assert [pair.made_of for pair in read.pairs] == [pair.made_of for pair in PAIRS]
    assert [(pair.score, pair.status, pair.reason) for pair in read.pairs] == [
        (pair.score, pair.status, pair.reason) for pair in PAIRS
    ]
    assert [pair.extra.get("note", "") for pair in read.pairs] == ["", "", "mine"]
    assert read.lines == (2, 3, 4)
    assert read.where(1) == f"{written} line 3"
    again = written.read_bytes()
    assert Manifest.read(tmp_path).write().read_bytes() == again  # a folder stands for its manifest


def test_the_columns_of_the_file(tmp_path: Path) -> None:
    Manifest(tmp_path / "m.csv", PAIRS[:1]).write()
    assert (tmp_path / "m.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert COLUMNS[:8] == ("first", "second", "label", "split", "builder", "score", "status", "reason")


def test_files_and_originals() -> None:
    assert PAIRS[0].files == ("images/0.png", "masks/0.png")
    assert PAIRS[0].originals == ("a.png", "b, c.png")
    assert PAIRS[1].files == ("one.png", "two.png")
    assert PAIRS[1].originals == ()


def test_a_table_of_the_users_needs_four_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "first;second;label;split\na.png;b.png;disc;val\n")
    (pair,) = Manifest.read(path).pairs
    assert (pair.split, pair.builder, pair.score, pair.status) == ("validation", "own", None, "")


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    header = "first,second,label,split,status,score\n"
    path = write(tmp_path, header + "a,b,0,test,,\n,b,0,trian,ok,\na,b,,train,good,high\n")
    with pytest.raises(ProblemsError) as caught:
        Manifest.read(path)
    assert caught.value.problems == [
        f"{path} line 2: split is 'test'; pairs are made of training or validation images alone",
        f"{path} line 3: no first",
        f"{path} line 3: split is 'trian', expected train or validation",
        f"{path} line 4: no label",
        f"{path} line 4: status is 'good', expected ok, rejected or nothing",
        f"{path} line 4: score is 'high', expected a number or nothing",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; its first line must name the columns"),
        ("first,second,label,split\n", "has no row below its first line"),
        ("first,label,split\na,0,train\n", "has no column second"),
        (
            "image,counterpart,label\na,b,0\n",
            "of counterparts, .* `ipg pairs build counterparts --table .*manifest.csv",
        ),
        ("first,second,label,split,bilder\na,b,0,train,x\n", "has a column 'bilder'; is builder meant"),
        ("first,second,label,split\na,b,0\n", "has 3 cells, its first line 4"),
        ("first,second,label,split,score\na,b,0,train,nan\n", "score is 'nan'"),
    ],
)
def test_tables_that_are_no_manifest(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Manifest.read(write(tmp_path, text))


def test_no_manifest_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no manifest.csv or manifest.parquet; `ipg pairs build` makes one"):
        Manifest.read(tmp_path)
    with pytest.raises(DataError, match=r"there are no pairs at .*none\.csv; `ipg pairs build` makes some"):
        Manifest.read(tmp_path / "none.csv")
    for name in ("background", "backgron"):
        (tmp_path / name).mkdir()
    write(tmp_path / "background", "first,second,label,split\na,b,0,train\n")
    with pytest.raises(DataError, match=r"there are no pairs at .*backgrond; did you mean background\?"):
        Manifest.read(tmp_path / "backgrond")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match="Parquet needs pyarrow; install it"):
        Manifest(tmp_path / "manifest.parquet", PAIRS).write()
    assert list(tmp_path.iterdir()) == []


def test_parquet_round_trip(tmp_path: Path) -> None:
    read = Manifest.read(Manifest(tmp_path / "manifest.parquet", PAIRS).write())
    assert [pair.cells() for pair in read.pairs] == [
        pair.cells() | {"note": pair.extra.get("note", "")} for pair in PAIRS
    ]
