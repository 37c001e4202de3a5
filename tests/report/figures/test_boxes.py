"""Boxes: their numbers against hand-worked quartiles, their drawing against what has to be seen."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from report.reader import words

from ipg.report.figures.boxes import PUBLISHED, boxes_data, draw_boxes

DATA = {"ours": [[0.1, 0.2, 0.3, 0.4, 0.9], []], "others": [[], [0.5]]}


def test_quartiles_and_extremes() -> None:
    data = boxes_data("Seeds", "pairs", ["40", "124"], DATA)
    first, second = data.series
    assert first.boxes[1] is None
    box = first.boxes[0]
    assert box is not None
    assert (box.low, box.first, box.median, box.third, box.high) == (0.1, 0.2, 0.3, 0.4, 0.9)
    alone = second.boxes[1]
    assert alone is not None
    assert alone.low == alone.median == alone.high == 0.5
    assert first.series != second.series


def test_the_drawing_names_series_categories_and_the_paper() -> None:
    published = [(0.676, 0.015), None]
    svg = draw_boxes(boxes_data("Seeds", "pairs", ["40", "124"], DATA, published, detail="on small images"))
    shown = words(svg)
    for wanted in ("Seeds", "on small images", "ours", "others", "40", "124", "pairs"):
        assert wanted in shown
    assert PUBLISHED in shown
    assert "median 30.0 %" in (ET.fromstring(svg).get("aria-label") or "")
    assert PUBLISHED not in words(draw_boxes(boxes_data("S", "p", ["40", "124"], DATA)))


def test_a_long_line_beneath_the_title_is_broken_not_cut() -> None:
    detail = "Quick version on coloured fashion, noisy labels, not ColoredMNIST; accuracy; a dot is a seed"
    svg, brief = (draw_boxes(boxes_data("Seeds", "pairs", ["40", "124"], DATA, detail=d)) for d in (detail, "brief"))
    shown = words(svg)
    at = shown.index("Seeds")
    assert " ".join(shown[at + 1 : at + 3]) == detail
    heights = [float(ET.fromstring(drawn).attrib["height"]) for drawn in (svg, brief)]
    assert heights[0] == heights[1] + 18  # what lies beneath makes room


def test_a_setting_without_values_is_left_out_and_the_others_keep_their_colours() -> None:
    (only,) = boxes_data("Seeds", "pairs", ["40", "124"], DATA | {"ours": [[], []]}).series
    assert (only.name, only.series) == ("others", boxes_data("Seeds", "pairs", ["40", "124"], DATA).series[1].series)


def test_nothing_measured_draws_nothing() -> None:
    assert draw_boxes(boxes_data("Seeds", "pairs", ["40"], {"ours": [[]]}, [(0.6, None)])) == ""
