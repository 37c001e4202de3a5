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


def test_a_column_of_notes_is_of_words_that_may_wrap() -> None:
    """On one line a long note would be out of sight to the right."""
    lines = [LINES[0], (*LINES[1][:-1], "not done: 8 of 100 trials")]
    page = table_page("Pairs", [], HEAD, lines, NOTES)
    assert re.findall(r'class="words">(.*?)</t', page) == ["data", "", "", "not done: 8 of 100 trials"]


def test_an_interval_stands_beneath_its_mean() -> None:
    """Beside it, as in a text, two metrics would fill the page."""
    lines = [("clothes", "1 (2 to 3)", "72.9 ± 0.3 (72.1 to 73.4)", "2.1 (3)", "`abc`", "left out (2 to 3)")]
    page = table_page("Pairs", [], HEAD, lines, (), text=2)
    cells = re.findall(r"<td.*?>(.*?)</td>", page)
    assert cells[:3] == ["1 (2 to 3)", '72.9 ± 0.3 <span class="span">72.1 to 73.4</span>', "2.1 (3)"]
    assert cells[-1] == "left out (2 to 3)"
