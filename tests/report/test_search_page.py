"""A search as a page and as figures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ipg.config import RunConfig
from ipg.experiments.search.plan import Plan, Tried
from ipg.experiments.search.result import Found
from ipg.methods.space import Choice, LogUniform, ZeroOr
from ipg.report.figures.search import draw_shares, draw_worth, history_data, importance_data, slices_data
from ipg.report.search_page import render_search, write_search

SPACE = {"margin": LogUniform(0.01, 10), "tau": ZeroOr(0, 1), "batch": Choice((32, 64))}


def make(trials: list[Tried], **changes: Any) -> Found:
    plan = Plan("it", RunConfig(seed=100), SPACE, "worst_group", 9, **changes)
    return Found(plan, trials, {"margin": 0.75, "tau": 0.25, "batch": 0.0} if len(trials) > 1 else {})


def tried(number: int, value: float | None, state: str = "complete", **about: Any) -> Tried:
    settings = {"margin": 10.0 ** (number - 2), "tau": 0.0, "batch": 32 if number % 2 else 64}
    return Tried(number, state, value, settings, {"commit": "abc", "hardware": "x", "date": "today", **about})  # type: ignore[arg-type]


@pytest.fixture
def found() -> Found:
    return make(
        [
            tried(0, 0.25),
            tried(1, 0.75, without_groups=0.5),
            tried(2, None, "failed", error="<b>no</b>"),
            tried(3, 0.5, without_groups=0.75),
            tried(4, 0.0, "wrong", error="collapsed"),
        ]
    )


def test_history_is_of_the_trials_that_have_a_value(found: Found) -> None:
    data = history_data(found)
    assert (data.places, data.values, data.best) == ((0.0, 1.0, 3.0, 4.0), (0.25, 0.75, 0.5, 0.0), 1)


def test_a_slice_for_every_setting_that_differed(found: Found) -> None:
    margin, batch = slices_data(found)
    assert (margin.title, margin.logarithmic, margin.names) == ("margin", True, ())
    assert margin.places == pytest.approx((0.01, 0.1, 10.0, 100.0))
    assert (batch.title, batch.names, batch.places) == ("batch", ("32", "64"), (1.0, 0.0, 0.0, 1.0))


def test_figures_are_svg_that_says_what_it_shows(found: Found) -> None:
    drawn = [draw_worth(history_data(found)), draw_shares(importance_data(found.importances))]
    drawn += [draw_worth(panel) for panel in slices_data(found)]
    labels = [ET.fromstring(svg).attrib["aria-label"] for svg in drawn]
    assert labels[0] == "Best so far: 4 trials from 0.0 % to 75.0 %."
    assert labels[1].startswith("Which settings decide: margin 75.0 %, tau 25.0 %, ")
    assert "mathdefault" not in "".join(drawn)
    assert drawn[0] == draw_worth(history_data(found))


def test_the_page_tells_of_every_trial_and_escapes_what_it_is_given(found: Found) -> None:
    page = render_search(found)
    assert '<span class="after">75.0\N{NO-BREAK SPACE}%</span>' in page
    assert "The best of 4 trials by accuracy of the worst group of the validation images" in page
    assert "1 went wrong, 1 failed" in page
    assert "trial 3 is best" in page
    assert "failed: &lt;b&gt;no&lt;/b&gt;" in page
    assert "went wrong: collapsed" in page
    assert "<b>no</b>" not in page
    assert page.count("<svg") == 3
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")


def test_a_search_that_found_nothing_has_a_page_too(tmp_path: Path) -> None:
    page = write_search(tmp_path, make([tried(0, None, "failed", error="out of memory")]))
    text = page.read_text(encoding="utf-8")
    assert "No trial has a value yet" in text
    assert "failed: out of memory" in text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html"]


def test_figures_lie_beside_the_page(found: Found, tmp_path: Path) -> None:
    assert write_search(tmp_path, found) == tmp_path / "report.html"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["history.svg", "report.html"]
    ET.parse(tmp_path / "history.svg")


def test_which_settings_decide_is_told_of_ten_trials_or_more(tmp_path: Path) -> None:
    trials = [tried(number, number / 20, "wrong" if number == 3 else "complete") for number in range(10)]
    caveat = "Which settings decide cannot be told from fewer than 10 trials"
    page = render_search(make(trials[:9]))
    assert (caveat in page, "Which settings decide: margin" in page) == (True, False)
    page = write_search(tmp_path, make(trials)).read_text(encoding="utf-8")
    assert (caveat in page, "Which settings decide: margin" in page) == (False, True)
    ET.parse(tmp_path / "importance.svg")
