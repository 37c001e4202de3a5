from __future__ import annotations

import pytest
from report.reader import words

from ipg.report import figures
from ipg.report.figures import Line, Panel

NAN = float("nan")


def test_curves_data(run) -> None:
    average, worst, disagreement = figures.curves_data([run()])
    assert average.title == "Average accuracy"
    (line,) = average.lines
    assert (line.run, line.series, line.epochs, line.selected) == ("Plain training (ERM)", "before", (1, 2, 3), 3)
    assert line.values == pytest.approx((0.1, 0.2, 0.3))
    assert worst.lines[0].values == (0.125,) * 3
    assert disagreement.title == "Pair disagreement"
    assert disagreement.lines[0].values == (0.75,) * 3


def test_curves_data_without_held_out_pairs_takes_the_training_pairs_and_says_so(run) -> None:
    panel = figures.curves_data([run(disagreement=None)])[-1]
    assert panel.title == "Disagreement of training pairs"
    assert panel.lines[0].values == (0.5,) * 3


def test_curves_data_leaves_out_what_no_run_has(run) -> None:
    rows = [{"epoch": 1, "test": {"average": NAN, "worst_group": 0.5}}, {"epoch": 2, "test": None}]
    (panel,) = figures.curves_data([run(epochs=rows, result={}), run(epochs=[])])
    assert panel == Panel(
        "worst_group",
        "Worst-group accuracy",
        (Line("Plain training (ERM)", "before", (1, 2), (0.5, None), None),),
    )
    assert figures.curves_data([]) == ()


def test_the_last_point_of_a_run_that_was_fitted_anew_is_a_refit(run) -> None:
    marked = run(epochs=[*run().epochs[:2], {**run().epochs[2], "refitted": 1}])
    older = run(config={"epochs": 2})
    for one in (marked, older):
        for panel in figures.curves_data([run(), one]):
            assert [line.refit for line in panel.lines] == [False, True]
            svg = figures.draw_curves(panel)
            assert words(svg).count("refit") == 1
            assert "after a refit" in svg
    assert "refit" not in figures.draw_curves(figures.curves_data([run()])[0])


@pytest.mark.parametrize(
    "lines",
    [
        (Line("one epoch", "before", (1,), (0.5,), 1),),
        (Line("a gap", "before", (1, 2, 3), (0.5, None, 0.7), 2),),
        (Line("a refit after a gap", "before", (1, 2, 3), (0.5, None, 0.7), 3, True),),
        (Line("a refit alone", "before", (1,), (0.5,), 1, True), Line("none", "after", (1, 2), (0.5, None), 2, True)),
        (Line("long", "after", tuple(range(1, 301)), (0.5,) * 300, 200), Line("short", "before", (1,), (0.0,), None)),
    ],
)
def test_curves_are_drawn(lines: tuple[Line, ...]) -> None:
    svg = figures.draw_curves(Panel("disagreement", "Pair disagreement", lines))
    assert words(svg)[0] == "Pair disagreement"
    assert "Epoch" in words(svg)
    assert all(f"{line.run} from " in svg for line in lines)
    assert "nan" not in svg.lower()
