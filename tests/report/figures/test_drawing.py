"""What holds of every figure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import matplotlib
import pytest
from report.reader import words

from ipg.evaluation.statistics import wilson
from ipg.report import figures
from ipg.report.figures import Bars, Line, PairGrid, Panel
from ipg.report.figures.drawing import SVG, restyled, standalone


def every_figure(name: str) -> list[str]:
    tile = figures.Tile("data:,1", "data:,2", name, True)
    return [
        figures.draw_bars(
            Bars(name, (name, "q"), ("before", "after"), (name,), (4,), ((0.5,), (0.6,)), ((wilson(2, 4),), (None,)))
        ),
        figures.draw_curves(Panel("average", "Average", (Line(name, "before", (1, 2), (0.1, 0.2), 2),))),
        figures.draw_pair_grid(PairGrid((tile, tile))),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=y>',
        "$x^2$ costs $5",
        r"$\frac$",
        "日本語 🦆",
        "tab\tline\nnull\0 bell\a",
        "\ud800 lone surrogate",
        "",
        "word " * 100,
        'id="figure_1" url(#x) #c2540a',
    ],
)
def test_any_name_gives_well_formed_svg_without_foreign_elements(name: str) -> None:
    for svg in every_figure(name):
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(svg).iter()}
        assert tags <= {"svg", "g", "path", "text", "defs", "use", "clipPath", "rect", "image"}


def test_a_short_name_is_shown_as_it_is() -> None:
    assert "$x$ #c2540a" in words(every_figure("$x$ #c2540a")[0])


def test_figures_are_the_same_whatever_the_settings_and_change_none(run) -> None:
    plain = every_figure("a")
    with matplotlib.rc_context(
        {"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}
    ):
        before = dict(matplotlib.rcParams)
        assert every_figure("a") == plain
        assert dict(matplotlib.rcParams) == before


def test_figures_take_colours_and_font_of_the_page() -> None:
    for svg in every_figure("a"):
        assert "var(--" in svg
        assert "DejaVu" not in svg
        assert "<style" not in svg
        assert 'role="img"' in svg


def test_ids_of_two_panels_do_not_meet() -> None:
    lines = (Line("a", "before", (1, 2), (0.1, 0.2), 2),)
    found = [
        {
            element.attrib["id"]
            for element in ET.fromstring(figures.draw_curves(Panel(key, key, lines))).iter()
            if "id" in element.attrib
        }
        for key in ("average", "worst_group")
    ]
    assert found[0]
    assert not found[0] & found[1]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("font-family: 'DejaVu Sans', Arial; fill: #1b1f24", "font-family: inherit; fill: var(--ink, #1b1f24)"),
        ("font: 12px 'DejaVu Sans', Arial; fill: none", "font-size: 12px; font-family: inherit; fill: none"),
        ("font: 700 12.5px 'DejaVu Sans'", "font-weight: 700; font-size: 12.5px; font-family: inherit"),
        ("fill: #123456", "fill: #123456"),
    ],
)
def test_styles_of_old_and_new_matplotlib(style: str, expected: str) -> None:
    assert restyled(style) == expected


def test_a_figure_as_a_file_has_a_ground_and_plain_colours() -> None:
    bars = figures.draw_bars(Bars("B", ("p", "q"), ("before", "after"), ("g",), (4,), ((0.5,), (0.6,)), ((None,),) * 2))
    file = standalone(bars, margin=10)
    svg = ET.fromstring(file)
    inner = ET.fromstring(bars)
    assert float(svg.attrib["width"]) == float(inner.attrib["width"]) + 20
    assert svg.attrib["viewBox"].startswith("-10 -10 ")
    assert svg[0].tag == f"{{{SVG}}}rect"
    assert (svg[0].get("width"), svg[0].get("x")) == (svg.attrib["width"], "-10")
    assert "var(" not in file
    defined = [path for part in svg.iter(f"{{{SVG}}}defs") for path in part.iter()]
    assert words(file) == words(bars)
    assert not re.search(
        r"\d\.\d\d", " ".join(element.get("d", "") for element in svg.iter() if element not in defined)
    )
