"""Bands and the plane of two parameters: their numbers by hand, their drawing by what has to be seen."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from report.reader import words

from ipg.report.figures.bands import MOST_POINTS, bands_data, draw_bands
from ipg.report.figures.space import Arrow, draw_space, space_data

SVG = "{http://www.w3.org/2000/svg}"


def test_mean_and_deviation_at_every_step() -> None:
    (band,) = bands_data("Loss", {"ours": [[1.0, 4.0], [3.0, 4.0]]}).bands
    assert band.steps == (1, 2)
    assert band.mean == (2.0, 4.0)
    assert band.deviation == pytest.approx((2**0.5, 0.0))
    (alone,) = bands_data("Loss", {"ours": [[1.0, 4.0]]}, first=0).bands
    assert (alone.steps, alone.deviation) == ((0, 1), (0.0, 0.0))


def test_long_runs_keep_their_ends() -> None:
    (band,) = bands_data("Loss", {"ours": [list(range(5000))]}).bands
    assert len(band.steps) == MOST_POINTS
    assert (band.mean[0], band.mean[-1]) == (0, 4999)


def test_the_drawing_names_measures_and_the_level() -> None:
    data = bands_data("Loss", {"ours": [[1.0, 2.0, 1.5]]}, line=(0.6, "the least"), detail="two seeds")
    shown = words(draw_bands(data))
    for wanted in ("Loss", "two seeds", "ours", "the least", "epoch"):
        assert wanted in shown


def test_the_plane_holds_all_arrows_and_the_origin() -> None:
    arrows = [Arrow((1.0, 0.5), (0.4, 0.5), "before"), Arrow((0.4, 0.5), (0.6, 0.9), "after")]
    data = space_data("Run", ("a", "b"), arrows, [("before", "corrective")], lambda x, y: np.add.outer(y, x))
    assert data.across[0] < 0 < 1 < data.across[-1]
    assert data.up[0] < 0 < 0.9 < data.up[-1]
    assert data.loss.shape == (len(data.up), len(data.across))
    svg = ET.fromstring(draw_space(data))
    assert "corrective" in [element.text for element in svg.iter(f"{SVG}text")]
    assert svg.get("aria-label") == "Run: from (1.00, 0.50) to (0.60, 0.90) in 2 updates."
