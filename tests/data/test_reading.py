from collections.abc import Sequence

import pytest

from ipg.config import RunConfig
from ipg.data.columns import Columns
from ipg.data.errors import DataError
from ipg.data.reading import Reading, likeliest


def columns(*names: str) -> Columns:
    return Columns("t.csv", {name: ["x"] for name in names}, [2])


def test_as_a_run_is_told() -> None:
    assert Reading.of(RunConfig()) == Reading()
    config = RunConfig(split_seed=3, path_column="file", label_column="y", attribute_column="place")
    assert Reading.of(config) == Reading(3, "file", "y", "place")


def test_as_files_keep_it() -> None:
    assert Reading.kept({"seed": 5, "data": "x"}) == Reading(5)  # before the split had a seed of its own
    assert Reading.kept({"seed": 5, "split_seed": 1, "label_column": "y"}) == Reading(1, label_column="y")
    assert Reading.kept({}) == Reading()
    with pytest.raises(DataError, match="drawn by a whole number, not by 'x'"):
        Reading.kept({"split_seed": "x"})


@pytest.mark.parametrize(
    ("names", "reading", "says"),
    [
        (("class", "filename", "background"), Reading(), "is it --path-column filename --label-column class?"),
        (("path", "target"), Reading(), "no column label; its first line names path, target: is it --label-column"),
        (("Path", "Label"), Reading(), "no column path, label; .* --path-column Path --label-column Label"),
        (("path", "lable"), Reading(), "is it --label-column lable?"),
        (("path", "x1"), Reading(), "names path, x1: say which it is with --label-column"),
        (("img", "x1"), Reading(), "is it --path-column img? say which it is with --label-column"),
        (("path", "class"), Reading(label_column="clas"), "no column clas; .*is it --label-column class?"),
        (("path", "label", "place"), Reading(attribute_column="plc"), "no column plc; .*--attribute-column place?"),
    ],
)
def test_the_message_names_the_option_and_the_likeliest_column(
    names: Sequence[str], reading: Reading, says: str
) -> None:
    with pytest.raises(DataError, match=says.replace("?", r"\?")):
        reading.check(columns(*names))


def test_columns_that_are_there() -> None:
    Reading().check(columns("path", "label"))
    Reading(0, "file", "y", "place").check(columns("file", "y", "place"))


@pytest.mark.parametrize(
    ("role", "names", "found"),
    [
        ("label", ("y", "class"), "class"),
        ("label", ("Y",), "Y"),
        ("path", ("Image Path",), "Image Path"),
        ("path", ("size", "date"), None),
        ("attribute", ("weather", "background"), "background"),
    ],
)
def test_the_likeliest(role: str, names: tuple[str, ...], found: str | None) -> None:
    assert likeliest(role, role, names) == found
