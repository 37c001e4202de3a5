"""A measure over two settings as a grid of coloured cells, with published figures and a boundary where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from ipg.report.figures.drawing import INK, MUTED, PAPER, TRACK, WIDE, style, titled, to_svg

__all__ = ["Grid", "GridCell", "draw_grid", "grid_data"]

COLOURS = "cividis"
"""Rises in brightness all the way, and reads without red-green vision."""
DARK, LIGHT = "#000000", "#ffffff"
"""Text in cells, whose colours are the same on a dark page: none that a page changes."""
CELL = 58
"""Pixels from one row of cells to the next."""
LEAST_RANGE = 0.1
"""The colours span at least so much, so that what hardly differs looks alike."""


@dataclass(frozen=True)
class GridCell:
    """A measure of some seeds, and the published one, as shares; None where there is none."""

    mean: float | None
    deviation: float | None = None
    count: int = 0
    published: float | None = None


@dataclass(frozen=True)
class Grid:
    """Cells by row, then by column."""

    about: str
    down: str
    across: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[GridCell, ...], ...]
    beyond: tuple[tuple[bool, ...], ...]
    """Whether a cell lies beyond the boundary."""
    boundary: str | None = None
    """What the boundary is."""
    detail: str = ""
    """A line beneath the title."""


def grid_data(
    about: str,
    axes: tuple[str, str],
    values: tuple[Sequence[Any], Sequence[Any]],
    cells: Mapping[tuple[Any, Any], GridCell],
    *,
    beyond: Callable[[Any, Any], bool] | None = None,
    boundary: str | None = None,
    detail: str = "",
) -> Grid:
    """The grid of `cells`, which are named by their values down and across."""
    rows, columns = values
    return Grid(
        about=about,
        down=axes[0],
        across=axes[1],
        rows=tuple(f"{row:g}" for row in rows),
        columns=tuple(f"{column:g}" for column in columns),
        cells=tuple(tuple(cells.get((row, column), GridCell(None)) for column in columns) for row in rows),
        beyond=tuple(tuple(beyond is not None and beyond(row, column) for column in columns) for row in rows),
        boundary=boundary,
        detail=detail,
    )


def draw_grid(data: Grid) -> str:
    """A cell a pair of settings: the mean and deviation in it, the published mean beneath; blank where it was not run.

    Empty without a mean.
    """
    means = [entry.mean for row in data.cells for entry in row if entry.mean is not None]
    if not means:
        return ""
    left, bottom = 64, 28 if data.boundary else 8
    wide = (WIDE - left - 4) / len(data.columns)
    high = max(means)
    low = min(*means, high - LEAST_RANGE)
    with style():
        figure, ground, head = titled(data.about, data.detail, WIDE, 40 + CELL * len(data.rows) + bottom)
        top = head + 40
        ground.text(left, head + 16, data.across, color=MUTED, fontsize=12)
        ground.text(0, top - 8, data.down, color=MUTED, fontsize=12)
        for j, column in enumerate(data.columns):
            ground.text(left + wide * (j + 0.5), top - 8, column, color=MUTED, fontsize=12, ha="center")
        for i, row in enumerate(data.cells):
            y = top + CELL * i
            ground.text(left - 10, y + CELL / 2 + 4, data.rows[i], color=MUTED, fontsize=12, ha="right")
            for j, entry in enumerate(row):
                _draw_cell(ground, left + wide * j, y, wide - 2, CELL - 2, entry, low, high)
        _draw_boundary(ground, data, left, top, wide, CELL)
        if data.boundary:
            y = top + CELL * len(data.rows) + 18
            ground.plot([left, left + 24], [y] * 2, color=INK, linewidth=3)
            ground.text(left + 32, y + 4, data.boundary, color=INK, fontsize=12)
        return to_svg(figure, "grid", f"{data.about}. {_spoken(data)}")


def _draw_cell(
    ground: Axes, x: float, y: float, wide: float, tall: float, entry: GridCell, low: float, high: float
) -> None:
    if entry.mean is None:
        ground.add_patch(Rectangle((x + 0.5, y + 0.5), wide - 1, tall - 1, linewidth=1, edgecolor=TRACK, fill=False))
        told = tall / 2 + (4 if entry.published is None else -1)
        ground.text(x + wide / 2, y + told, "not run", color=MUTED, fontsize=11, ha="center")
    else:
        share = (entry.mean - low) / (high - low)
        ground.add_patch(Rectangle((x, y), wide, tall, linewidth=0, color=to_hex(colormaps[COLOURS](share))))
        colour = DARK if share > 0.5 else LIGHT
        text = f"{100 * entry.mean:.1f}" + ("" if entry.deviation is None else f" ± {100 * entry.deviation:.1f}")
        alone = entry.published is None
        said, told = (text, tall / 2 + 4) if alone else (f"ours {text}", tall / 2 - 1)
        ground.text(x + wide / 2, y + told, said, color=colour, fontsize=12, ha="center")
    if entry.published is not None:
        said = f"paper {100 * entry.published:.1f}"
        colour = MUTED if entry.mean is None else colour
        ground.text(x + wide / 2, y + tall / 2 + 15, said, color=colour, fontsize=11, ha="center")


def _draw_boundary(ground: Axes, data: Grid, left: float, top: float, wide: float, tall: float) -> None:
    """A line wherever of two neighbours one lies beyond, on a rim that sets it off from dark cells."""
    for colour, thick in ((PAPER, 7), (INK, 3)):
        for i, row in enumerate(data.beyond):
            for j, out in enumerate(row):
                x, y = left + wide * j - 1, top + tall * i - 1
                if j and out != row[j - 1]:
                    ground.plot([x, x], [y, y + tall], color=colour, linewidth=thick, solid_capstyle="projecting")
                if i and out != data.beyond[i - 1][j]:
                    ground.plot([x, x + wide], [y, y], color=colour, linewidth=thick, solid_capstyle="projecting")


def _spoken(data: Grid) -> str:
    parts = [
        f"{data.down} {row}, {data.across} {column}: {100 * entry.mean:.1f} %"
        for row, cells in zip(data.rows, data.cells, strict=True)
        for column, entry in zip(data.columns, cells, strict=True)
        if entry.mean is not None
    ]
    return "; ".join(parts) + "."
