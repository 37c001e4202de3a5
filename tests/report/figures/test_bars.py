from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from report.reader import words

from ipg.evaluation.statistics import wilson
from ipg.report import figures
from ipg.report.figures import Bars
from ipg.report.views import PairAnswers

NAN = float("nan")


def bar_lengths(svg: str, colour: str) -> list[float]:
    paths = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}path")
    drawn = [path.attrib["d"].split() for path in paths if f"fill: var(--{colour}," in path.attrib.get("style", "")]
    return [float(d[4]) - float(d[1]) for d in drawn]  # M x y L x y …


def test_group_bars_data(run) -> None:
    data = figures.group_bars_data([run(), run("Guided", "after", 0.98, 0.97)])
    assert data == Bars(
        about="Accuracy by group",
        runs=("Plain training (ERM)", "Guided"),
        series=("before", "after"),
        blocks=("garment, red", "garment, green"),
        counts=(1200, 30),
        shares=((1.0, 0.125), (0.98, 0.97)),
        intervals=((wilson(1200, 1200), wilson(4, 30)), (wilson(1176, 1200), wilson(29, 30))),
    )


def test_group_bars_data_joins_groups_and_drops_what_is_no_number(run) -> None:
    first = run(result={"metrics": {"groups": {"a": {"accuracy": NAN, "count": None}, "b": None}}})
    second = run("x", "after", result={"metrics": {"groups": {"c": {"accuracy": 0.5, "count": 3}, "a": {"count": 9}}}})
    data = figures.group_bars_data([first, second])
    assert data.blocks == ("a", "b", "c")
    assert data.counts == (9, None, 3)
    assert data.shares == ((None, None, None), (None, None, 0.5))
    assert data.intervals == ((None, None, None), (None, None, wilson(2, 3)))
    assert data.take([2]).shares == ((None,), (0.5,))
    assert data.take([2]).intervals == ((None,), (wilson(2, 3),))


def test_pair_bars_data(run) -> None:
    plain = run(disagreement=0.75, pairs=PairAnswers(total=8, changed=6, both_right=1))
    guided = run("Guided", "after", disagreement=0.0, pairs=PairAnswers(total=8, changed=0, both_right=7))
    without = run("Unpaired", "reference", disagreement=None)
    assert figures.pair_bars_data([without, plain, guided]) == Bars(
        about="Held-out pairs",
        runs=("Plain training (ERM)", "Guided"),
        series=("before", "after"),
        blocks=("The answer changes", "Both answers are right"),
        counts=(8, 8),
        shares=((0.75, 0.125), (0.0, 0.875)),
        intervals=((wilson(6, 8), wilson(1, 8)), (wilson(0, 8), wilson(7, 8))),
    )


def test_pair_bars_data_of_runs_that_were_not_asked_or_on_other_pairs(run) -> None:
    few = run(disagreement=0.5, pairs=PairAnswers(total=2, changed=1, both_right=1))
    data = figures.pair_bars_data([few, run("Guided", "after", disagreement=0.1, pairs=None)])
    assert data.counts == (None, None)
    assert data.shares == ((0.5, 0.5), (0.1, None))
    assert data.intervals[1] == (None, None)
    assert figures.draw_bars(figures.pair_bars_data([run(disagreement=None)])) == ""


def test_bars_are_as_long_as_the_accuracy() -> None:
    none = ((None, None),) * 2
    data = Bars("Bars", ("p", "q"), ("before", "after"), ("a", "b"), (10, 20), ((1.0, 0.25), (0.5, None)), none)
    svg = figures.draw_bars(data)  # 100 % is 340 pixels
    assert bar_lengths(svg, "before") == pytest.approx([340, 85])
    assert bar_lengths(svg, "after") == pytest.approx([170])
    assert bar_lengths(svg, "track") == pytest.approx([340] * 4)
    assert words(svg) == ["a", "n = 10", "100.0\xa0%", "50.0\xa0%", "b", "n = 20", "25.0\xa0%", "–"]


def test_bars_leave_out_groups_without_a_number() -> None:
    data = Bars("Bars", ("p",), ("before",), ("a", "b"), (10, 0), ((0.5, None),), ((None, None),))
    assert words(figures.draw_bars(data)) == ["a", "n = 10", "50.0\xa0%"]
    assert figures.draw_bars(data.take([1])) == ""
    assert figures.draw_bars(data.take([])) == ""


LONG = "a bird of the water that is seen from far away, in front of a bamboo forest"


def test_a_long_name_is_broken_not_cut() -> None:
    brief, long = (
        figures.draw_bars(Bars("Bars", ("p",), ("before",), (name, "b"), (1234, 1), ((0.5, 0.25),), ((None, None),)))
        for name in ("a", LONG)
    )
    shown = words(long)
    lines = shown.index("n = 1,234")
    assert lines == 2
    assert " ".join(shown[:lines]) == LONG
    heights = [float(ET.fromstring(svg).attrib["height"]) for svg in (brief, long)]
    assert heights[1] == heights[0] + 17  # what lies beneath makes room
    assert bar_lengths(long, "before") == bar_lengths(brief, "before")


def test_a_name_without_spaces_is_broken_at_its_marks() -> None:
    name = "waterbird_seen_from_far_away_in_front_of_a_bamboo_forest_in_the_morning"
    shown = words(figures.draw_bars(Bars("Bars", ("p",), ("before",), (name,), (9,), ((0.5,),), ((None,),))))
    lines = shown[: shown.index("n = 9")]
    assert len(lines) == 2
    assert "".join(lines) == name
    assert lines[0].endswith("_")


def test_only_a_name_beyond_all_measure_is_cut() -> None:
    svg = figures.draw_bars(Bars("Bars", ("p",), ("before",), ("name " * 100,), (9,), ((0.5,),), ((None,),)))
    shown = words(svg)
    lines = shown[: shown.index("n = 9")]
    assert len(lines) == 4
    assert lines[-1].endswith("…")
    assert ("name " * 100).strip() in " ".join(ET.fromstring(svg).attrib["aria-label"].split())


def test_whiskers_span_the_interval() -> None:
    data = Bars("Bars", ("p",), ("before",), ("a",), (10,), ((0.5,),), ((wilson(5, 10),),))
    svg = figures.draw_bars(data)  # 100 % is 340 pixels
    paths = [path.attrib for path in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}path")]
    lines = [path for path in paths if "stroke: var(--ink" in path["style"]]
    ends = [path["d"].split() for path in lines]
    assert [float(x) for x in (ends[0][1], ends[0][4])] == pytest.approx([340 * end for end in wilson(5, 10)], abs=0.01)
