"""Tables as pages."""

from __future__ import annotations

import re

from ipg.report.table_page import Beneath, table_page

HEAD = ("data", "setting", "accuracy", "hardware", "commit", "")
LINES = [("clothes", "40 pairs", "72.9", "a CPU", "`abc`", ""), ("clothes", "124 pairs", "74.1", "a CPU", "`abc`", "")]
NOTES = ("Means over seeds.", "a CPU; commit `abc`.")


def columns(page: str) -> list[list[str]]:
    """The names of the columns, table by table."""
    return [re.findall(r"<th scope=\"col\".*?>(.*?)</th>", head) for head in re.findall(r"<thead>.*?</thead>", page)]


def test_what_every_line_repeats_is_left_to_the_note() -> None:
    assert columns(table_page("Pairs", [], HEAD, LINES, NOTES)) == [["data", "setting", "accuracy"]]
    assert columns(table_page("Pairs", [], HEAD, LINES, NOTES[:1])) == [list(HEAD[:-1])]  # no note says it
    other = [LINES[0], (*LINES[1][:3], "a GPU", "`abc`", "not run")]
    assert columns(table_page("Pairs", [], HEAD, other, NOTES)) == [["data", "setting", "accuracy", "hardware", ""]]


def test_columns_of_words_lean_left() -> None:
    further = Beneath("Steps", ("case", "mode", "time"), [("erm", "eager", "1.0")], (), 2)
    page = table_page("Pairs", [], HEAD, LINES, NOTES, further=[further], text=2)
    assert re.findall(r'class="words">(.*?)</t', page) == [
        "data", "setting", "40 pairs", "124 pairs", "case", "mode", "eager",
    ]  # fmt: skip
