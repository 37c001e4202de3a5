"""Grids: cells where they belong, and a boundary between those within and those beyond."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from report.reader import words

from ipg.report.figures.grid import LIGHT, GridCell, draw_grid, grid_data

SVG = "{http://www.w3.org/2000/svg}"
CELLS = {(0.1, 1): GridCell(0.7, 0.01, 3, 0.689), (0.5, 4): GridCell(0.2), (0.1, 4): GridCell(None, published=0.5)}


def grid(**changes: object):
    given = {"beyond": lambda alpha, every: alpha * every >= 1, "boundary": "k α = 1"} | changes
    return grid_data("Map", ("α", "k"), ([0.1, 0.5], [1, 4]), CELLS, **given)


def test_cells_stand_by_their_values() -> None:
    data = grid()
    assert (data.rows, data.columns) == (("0.1", "0.5"), ("1", "4"))
    assert data.cells[0][0].mean == 0.7
    assert data.cells[1][1].mean == 0.2
    assert data.cells[1][0] == GridCell(None)
    assert data.beyond == ((False, False), (False, True))


def test_the_drawing_shows_means_the_papers_and_what_is_missing() -> None:
    shown = words(draw_grid(grid(detail="small")))
    for wanted in ("Map", "small", "ours 70.0 ± 1.0", "paper 68.9", "20.0", "paper 50.0", "k α = 1"):
        assert wanted in shown
    assert shown.count("not run") == 2


def test_colours_of_cells_and_their_text_stay_on_a_dark_page() -> None:
    cells = {(0.1, 1): GridCell(0.7), (0.5, 4): GridCell(0.2)}
    svg = ET.fromstring(draw_grid(grid_data("Map", ("α", "k"), ([0.1, 0.5], [1, 4]), cells)))
    styles = {text.text: text.get("style", "") for text in svg.iter(f"{SVG}text")}
    assert "fill" not in styles["70.0"]  # black, which SVG does not say
    assert f"fill: {LIGHT}" in styles["20.0"]
    assert "var(--muted" in styles["not run"]
    fills = [path.get("style", "") for path in svg.iter(f"{SVG}path") if "fill: #" in path.get("style", "")]
    assert len(fills) == 2  # cells without a mean are blank


def test_the_boundary_is_drawn_only_where_cells_part() -> None:
    def thick(svg: str) -> int:
        return svg.count("stroke-width: 3")

    # between (0.5, 1) and (0.5, 4), between (0.1, 4) and (0.5, 4), and the legend's own line
    assert thick(draw_grid(grid())) == 3
    assert thick(draw_grid(grid(beyond=None, boundary=None))) == 0


def test_without_a_mean_nothing_is_drawn() -> None:
    assert draw_grid(grid_data("Map", ("a", "b"), ([1], [2]), {})) == ""


def test_what_hardly_differs_looks_alike() -> None:
    def colours(first: float, second: float) -> list[int]:
        cells = {(1, 1): GridCell(first), (1, 2): GridCell(second)}
        svg = ET.fromstring(draw_grid(grid_data("Map", ("a", "b"), ([1], [1, 2]), cells)))
        fills = [re.search(r"fill: #(\w\w)", path.get("style", "")) for path in svg.iter(f"{SVG}path")]
        return [int(fill[1], 16) for fill in fills if fill]

    near, far = colours(0.750, 0.748), colours(0.75, 0.15)
    assert abs(near[0] - near[1]) < 20 < 200 < abs(far[0] - far[1])
