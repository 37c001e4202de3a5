import gzip
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

from ipg.data import columns
from ipg.data.columns import Columns, parse_csv, read_columns
from ipg.data.errors import DataError, ProblemsError


def test_columns_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('path,label\n"a, b.jpg", cat \n\nc.jpg,dog\n', encoding="utf-8")
    table = read_columns(path)
    assert table.values == {"path": ["a, b.jpg", "c.jpg"], "label": ["cat", "dog"]}
    assert (len(table), table.where(1), "path" in table) == (2, f"{path} line 4", True)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_what_spreadsheets_write(separator: str, end: str, mark: str) -> None:
    text = mark + separator.join(["path", "label"]) + end + separator.join(["ä.jpg", "cat"]) + end
    assert parse_csv(text.encode(), "t.csv").values == {"path": ["ä.jpg"], "label": ["cat"]}


@pytest.mark.parametrize("first", ["path,label", "path,label,,", "path,label, "])
def test_what_spreadsheets_leave_behind(first: str) -> None:
    table = parse_csv(f"{first}\na.jpg,cat,,\n,,,\n , \nb.jpg,,,\n,,\n".encode(), "t.csv")
    assert table.values == {"path": ["a.jpg", "b.jpg"], "label": ["cat", ""]}
    assert table.where(1) == "t.csv line 5"


def test_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    assert read_columns(path)["b"] == ["2"]
    path.write_bytes(gzip.compress(b"a,b\n1,2\n")[:-9])
    with pytest.raises(DataError, match=r"t\.csv\.gz cannot be read"):
        read_columns(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "t.csv is empty"),
        (b"\n\n", "t.csv is empty"),
        (b"a,b\n", "has no row"),
        (b"a,b\n,\n", "has no row"),
        (b"a,b,,\n1,2,,3\n", "two columns of the name ''"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells, its first line 2"),
        (b"a,a\n1,2\n", "two columns of the name 'a'"),
        ("a,b\n1,é\n".encode("latin-1"), "line 2: byte 0xe9 is not UTF-8; save the table as UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "is not UTF-8"),
        (b'a,b\n"1,2\n', "line 2 is no CSV"),
    ],
)
def test_what_is_no_table(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_csv(data, "t.csv")


def test_all_ragged_rows_are_named() -> None:
    with pytest.raises(ProblemsError) as error:
        parse_csv(b"a,b\n1\n1,2\n1,2,3\n", "t.csv")
    assert error.value.problems == [
        "t.csv line 2 has 1 cells, its first line 2",
        "t.csv line 4 has 3 cells, its first line 2",
    ]


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no table .*t\.csv"):
        read_columns(tmp_path / "t.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_columns(tmp_path)


def test_a_missing_column_and_what_may_be_meant() -> None:
    table = parse_csv(b"paths,label\n1,2\n", "t.csv")
    with pytest.raises(
        DataError, match=r"no column path; its first line names paths, label: is paths meant for path\?"
    ):
        table.require("label", "path")


def test_columns_that_differ_in_case_alone() -> None:
    table = parse_csv(b"Path,LABEL,Split,split,Other\n1,2,3,4,5\n", "t.csv")
    assert list(table.spelt(("path", "label", "split", "none")).values) == ["path", "label", "Split", "split", "Other"]
    assert list(table.spelt(("Path", "path", "other")).values) == ["Path", "LABEL", "Split", "split", "other"]
    assert list(parse_csv(b"Path,PATH\n1,2\n", "t.csv").spelt(["path"]).values) == ["Path", "PATH"]


def test_numbers_by_meaning() -> None:
    problems: list[str] = []
    table = Columns("t.csv", {"y": ["0", "1", "x"]}, [2, 3, 9])
    assert table.numbers("y", {"0": 0, "1": 1}, problems) == [0, 1, -1]
    assert problems == ["t.csv line 9: y is 'x', expected 0 or 1"]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"path": ["a.jpg", "b.jpg"], "label": [3, None]}), path)
    assert read_columns(path).values == {"path": ["a.jpg", "b.jpg"], "label": ["3", ""]}
    for odd in ([["cat"], ["dog"]], [[], []], [b"", b""], [b"cat", b"dog"], [{"a": 1}, {"a": 2}]):
        parquet.write_table(pyarrow.table({"path": ["a.jpg", "b.jpg"], "label": odd}), path)
        with pytest.raises(DataError, match=r"t\.parquet: the column label holds (list|bytes|dict); expected text"):
            read_columns(path)
    path.write_bytes(b"PAR1garbage")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_columns(path)


def fake_parquet(monkeypatch: pytest.MonkeyPatch, table: dict[str, list[object]]) -> None:
    module = ModuleType("pyarrow.parquet")
    part = SimpleNamespace(nbytes=1, to_pydict=lambda: table)
    file = SimpleNamespace(schema_arrow=SimpleNamespace(names=list(table)), iter_batches=lambda: [part])
    module.ParquetFile = lambda path: nullcontext(file)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)


def test_parquet_cells_become_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    path.touch()
    fake_parquet(monkeypatch, {"path": ["a.jpg"], "label": [3]})
    assert read_columns(path).values == {"path": ["a.jpg"], "label": ["3"]}
    fake_parquet(monkeypatch, {"path": []})
    with pytest.raises(DataError, match="has no row"):
        read_columns(path)


def test_a_small_parquet_that_unpacks_to_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.parquet"
    parquet.write_table(pyarrow.table({"path": ["a.jpg"] * 200_000, "label": ["cat"] * 200_000}), path)
    assert path.stat().st_size < 20_000
    assert len(read_columns(path)) == 200_000
    monkeypatch.setattr(columns, "LARGEST_TABLE", 1 << 20)
    with pytest.raises(DataError, match=r"bomb\.parquet unpacks to more than 1,048,576 bytes: it is no table"):
        read_columns(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"needs pyarrow; install it \(pip .*\[parquet\]\"\) or save"):
        read_columns(tmp_path / "t.parquet")
