"""What is reached over what it costs: everything named, everything inside the axes."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from report.reader import words

from ipg.evaluation.spread import Spread
from ipg.report.figures.costs import ACROSS, Cost, Costs, draw_costs

PLAIN = Cost("ERM", Spread(0.3, 0.1, 5), Spread(1.0, 0.01, 5))


def test_settings_are_named_and_read_out() -> None:
    guided = Cost("guided $every$ 4", Spread(0.86, None, 1), Spread(1.19, None, 1))
    svg = draw_costs(Costs("Less work", (PLAIN, guided), "birds"))
    shown = words(svg)
    for wanted in ("Less work", "birds", "ERM", "guided $every$ 4", ACROSS):
        assert wanted in shown
    spoken = ET.fromstring(svg).get("aria-label")
    assert spoken == "Less work. ERM: 30.0 % at 1.00 times; guided $every$ 4: 86.0 % at 1.19 times."


def test_no_accuracy_below_zero_is_on_the_axis() -> None:
    """However far seeds are apart."""
    collapsed = Cost("auto", Spread(0.3, 0.5, 3), Spread(1.75, None, 1))
    assert not [text for text in words(draw_costs(Costs("Less work", (PLAIN, collapsed)))) if text[0] in "-\u2212"]


def test_more_settings_than_colours() -> None:
    many = tuple(Cost(f"setting {i}", Spread(0.1 * i, None, 1), Spread(1 + 0.1 * i, None, 1)) for i in range(10))
    assert {f"setting {i}" for i in range(10)} <= set(words(draw_costs(Costs("Many", many))))


def test_nothing_measured_draws_nothing() -> None:
    assert draw_costs(Costs("Less work", ())) == ""
