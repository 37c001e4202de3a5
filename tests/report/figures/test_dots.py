from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from report.reader import words

from ipg.evaluation.spread import Spread, spread
from ipg.report.figures import Dots, Strip, draw_dots, points

SVG = "{http://www.w3.org/2000/svg}"


def rings(svg: str, colour: str) -> list[float]:
    """Where the rings of a colour are, from left to right."""
    uses = [use for use in ET.fromstring(svg).iter(f"{SVG}use") if f"var(--{colour}," in use.attrib.get("style", "")]
    return sorted(float(use.attrib["x"]) for use in uses)


def lines(svg: str, colour: str, width: str = "") -> list[list[float]]:
    """From where to where the lines of a colour, and of a width where one is given, go: x, y, x, y."""
    wanted = [f"stroke: var(--{colour},", f"stroke-width: {width}" if width else ""]
    paths = list(ET.fromstring(svg).iter(f"{SVG}path"))
    drawn = [path.attrib["d"].split() for path in paths if all(part in path.attrib.get("style", "") for part in wanted)]
    return [[float(d[1]), float(d[2]), float(d[4]), float(d[5])] for d in drawn]


@pytest.fixture
def dots() -> Dots:
    plain = Strip("ERM", "before", (0.0, 0.25, 0.5), Spread(0.25, 0.25, 3, None))
    guided = Strip("IPG", "after", (1.0,), spread([1.0]))
    lost = Strip("JTT", "other-1", (), None)
    return Dots("Accuracy", (("top, red", "n = 4", (plain, guided, lost)),))


def test_a_ring_a_seed_at_its_value_and_a_bar_at_the_mean(dots: Dots) -> None:
    svg = draw_dots(dots, width=500)
    zero, quarter, half = rings(svg, "before")
    (full,) = rings(svg, "after")
    assert quarter - zero == pytest.approx((full - zero) / 4)
    assert half - zero == pytest.approx((full - zero) / 2)
    (bar,) = lines(svg, "before", "2.4")
    assert bar[0] == bar[2] == pytest.approx(quarter)
    assert rings(svg, "other-1") == []
    assert [word for word in words(svg) if "%" in word or word == "–"] == ["25.0\u00a0%", "100.0\u00a0%", "–"]
    assert {"top, red", "n = 4", "ERM", "IPG", "JTT"} <= set(words(svg))


def test_the_interval_is_a_line_from_end_to_end() -> None:
    found = spread([0.2, 0.4, 0.6])
    assert found.interval is not None
    svg = draw_dots(Dots("A", (("g", "", (Strip("m", "after", (0.2, 0.4, 0.6), found),)),)))
    low, middle, high = rings(svg, "after")
    (line,) = lines(svg, "after", "3")
    reach = (high - low) / 0.4
    assert line[0] == pytest.approx(low + (found.interval.low - 0.2) * reach)
    assert line[2] == pytest.approx(low + (found.interval.high - 0.2) * reach)
    assert line[1] == line[3]
    assert low < middle < high


def test_differences_have_a_sign_and_a_line_at_zero() -> None:
    strip = Strip("IPG", "after", (-0.05, 0.0, 0.1), spread([-0.05, 0.0, 0.1]))
    svg = draw_dots(Dots("D", (("Worst group", "points", (strip,)),), low=-0.1, high=0.2, signed=True))
    below, zero, above = rings(svg, "after")
    assert above - zero == pytest.approx(2 * (zero - below))
    assert "+1.7" in words(svg)
    assert {"−10", "0", "+20"} <= set(words(svg))
    (line,) = lines(svg, "muted")
    assert line[0] == line[2] == pytest.approx(zero)


@pytest.mark.parametrize(("value", "text"), [(0.1234, "+12.3"), (-0.5, "−50.0"), (0.0, "0.0"), (-1e-9, "0.0")])
def test_points(value: float, text: str) -> None:
    assert points(value) == text


def test_nothing_to_draw_and_hostile_names() -> None:
    assert draw_dots(Dots("A", ())) == ""
    name = "<script>alert(1)</script>"
    svg = draw_dots(Dots(name, ((name, name, (Strip(name, "after", (0.5,), spread([0.5])),)),)))
    assert "<script" not in svg
    assert ET.fromstring(svg).attrib["aria-label"].startswith(name)
