"""Names of files and classes are text wherever they end up: in a terminal, a spreadsheet, a model card."""

from __future__ import annotations

import csv
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt

from ipg.classifier import Classifier
from ipg.cli.console import command_line
from ipg.cli.errors import LONGEST_LINE, clear
from ipg.config import RunConfig
from ipg.data.columns import FORMULA, as_cell, of_cell
from ipg.export.card import card
from ipg.models import build_model
from ipg.pairs.rows import Manifest, Pair
from ipg.prediction import Prediction, said_of, write_predictions

HOSTILE = '"><script>alert(1)</script><img src=https://example.org/x onerror=alert(1)>[a](javascript:alert(1))`|\n# b'


def classifier(*classes: str, **settings: Any) -> Classifier:
    groups = {
        f"{name}, {HOSTILE}": {"accuracy": 0.5, "count": count} for name, count in zip(classes, (2, 0), strict=True)
    }
    result = {"metrics": {"average": 0.5, "groups": groups}, "hardware": HOSTILE, "commit": HOSTILE}
    result |= {"date": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    config = RunConfig.from_mapping({"method": "erm", **settings}).flat()
    model = build_model("small_cnn", channels=3, classes=2)
    return Classifier(model, (3, 16, 16), classes, config=config, result=result)


# -- a spreadsheet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", FORMULA)
def test_no_cell_is_a_formula(tmp_path: Path, start: str) -> None:
    formula = f'{start}HYPERLINK("https://example.org/" & A1)'
    classes = ("cat", formula)
    said = [said_of(f"{formula}.png", (0.25, 0.75), classes), Prediction(f"{formula}.jpg", error=formula)]
    write_predictions(tmp_path / "all.csv", classifier(*classes), iter(said))
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert [cell for cell in cells if cell.startswith(FORMULA)] == []
    assert cells.count(f"'{formula}") == 2  # the class and the reason
    assert f"./{formula}.png" in cells  # still the way to the file


@pytest.mark.parametrize("start", FORMULA)
def test_no_cell_of_a_manifest_is_a_formula_and_all_are_read_back(tmp_path: Path, start: str) -> None:
    formula = f'{start}HYPERLINK("https://example.org/" & A1)'
    pair = Pair(
        first=f"{formula}.png",
        second="images/b.png",
        label=formula,
        split="train",
        builder=formula,
        status="rejected",
        reason=formula,
        made_of=(f"{formula}.png", "b.png"),
        label_first=formula,
        extra={"=1+1": formula, "gain": "-0.5", "quoted": f"'{formula}", "'": "'"},
    )
    manifest = Manifest(tmp_path / "manifest.csv", (pair,))
    with manifest.write().open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert [cell for cell in cells if cell.startswith(FORMULA)] == ["-0.5"]
    assert Manifest.read(tmp_path).pairs == (pair,)
    Manifest.read(tmp_path).write()
    assert Manifest.read(tmp_path).pairs == (pair,)


@pytest.mark.parametrize(
    "text", ["=1", "'=1", "''=1", "'", "", "a", "-1", "+1.5e-3", "-", "-x", "'a", "@a", "\t", "1-2"]
)
def test_every_text_comes_back_from_its_cell(text: str) -> None:
    assert of_cell(as_cell(text)) == text
    assert not as_cell(text).startswith(FORMULA) or float(text)


def test_a_manifest_by_hand_is_read_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "manifest.csv").write_text("first,second,label,split\na.png,b.png,=x,train\n", encoding="utf-8")
    assert Manifest.read(tmp_path).pairs[0].label == "=x"


def test_what_is_no_formula_stays(tmp_path: Path) -> None:
    classes = ("-1", "x+y")
    said = [said_of("a/b-c=d.png", (0.25, 0.75), classes), said_of("c.png", (0.75, 0.25), classes)]
    counts = write_predictions(tmp_path / "all.csv", classifier(*classes), iter(said))
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert [row[:2] for row in rows[1:]] == [["a/b-c=d.png", "x+y"], ["c.png", "-1"]]
    assert counts.classes == {"-1": 1, "x+y": 1}


def test_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    classes = ("a", "b")
    said = [said_of("\udcff.png", (0.5, 0.5), classes)]
    write_predictions(tmp_path / "all.csv", classifier(*classes), iter(said))
    assert "\n?.png,a," in (tmp_path / "all.csv").read_text(encoding="utf-8")


# -- a model card -------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Tags, and where links and images lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.places: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)
        self.places |= {value for name, value in attributes if name in ("src", "href")}


def test_a_card_has_no_markup_of_the_users() -> None:
    text = card(classifier(HOSTILE, "dog", data=f"/x/{HOSTILE}.csv", weights=f"/x/{HOSTILE}"), HOSTILE, {}, 16)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)  # as sites that allow HTML show it
    found = Tags(page)
    assert not {"script", "img"} & found.tags
    assert found.places == set()
    assert page.count("<h1>") == 1
    assert "&lt;script&gt;" in page


# -- a terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no \x1b]0;owned\x07\x1b[31m file", r"ipg: no \x1b]0;owned\x07\x1b[31m file"),
        ("a\nb\r\nc\u2028d", "ipg: a b c d"),
        ("right\u202eto left", r"ipg: right\u202eto left"),
        ("größer …", "ipg: größer …"),
    ],
)
def test_errors_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str], message: str, shown: str) -> None:
    assert _said(ValueError(message), capsys) == [shown]


def test_errors_are_of_readable_length(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = _said(ValueError("begin " + "x" * 1_000_000 + " end"), capsys)
    assert len(line) < LONGEST_LINE + 20
    assert line.startswith("ipg: begin x")
    assert line.endswith("x end")


def _said(error: Exception, capsys: pytest.CaptureFixture[str]) -> list[str]:
    def fail() -> None:
        raise error

    with pytest.raises(typer.Exit):
        clear(fail)()
    return capsys.readouterr().err.splitlines()


# -- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", ["s3cr3t", "s3cr3t@home", "s3:cr3t"])
def test_a_report_does_not_quote_passwords(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    address = f"postgresql://me:{secret}@db.example:5432/runs"
    monkeypatch.setattr(
        sys, "argv", ["ipg", "report", "run", "--storage", address, f"--data-path=s3://me:{secret}@x/y"]
    )
    assert command_line() == ("ipg report run --storage postgresql://db.example:5432/runs --data-path=s3://x/y")
