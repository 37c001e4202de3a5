"""The figures of a report. Each is two functions: one returns the data, one draws it.

An SVG made here stands alone and also inside a page: its colours are CSS variables with the light theme as fallback
(`fill: var(--after, #0069b4)`), its text takes the font of the page, and equal data gives equal bytes. Nothing here
touches pyplot or the reader's matplotlib settings.
"""

from __future__ import annotations

from ipg.report.figures.bars import Bars, draw_bars, group_bars_data, pair_bars_data
from ipg.report.figures.curves import Line, Panel, curves_data, draw_curves
from ipg.report.figures.dots import Dots, Strip, draw_dots, points
from ipg.report.figures.drawing import MARKERS, SERIES, SVG
from ipg.report.figures.heat import heat_stops, heat_uri
from ipg.report.figures.pictures import LARGEST_PIXEL_ART, PairGrid, Tile, draw_pair_grid, image_uri, pair_grid_data

__all__ = [
    "LARGEST_PIXEL_ART",
    "MARKERS",
    "SERIES",
    "SVG",
    "Bars",
    "Dots",
    "Line",
    "PairGrid",
    "Panel",
    "Strip",
    "Tile",
    "curves_data",
    "draw_bars",
    "draw_curves",
    "draw_dots",
    "draw_pair_grid",
    "group_bars_data",
    "heat_stops",
    "heat_uri",
    "image_uri",
    "pair_bars_data",
    "pair_grid_data",
    "points",
]
