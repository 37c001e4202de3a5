"""How the seeds of several settings are spread, as box plots, with published figures beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ipg.report.figures.drawing import (
    INK,
    MUTED,
    PAPER,
    SERIES,
    TRACK,
    WIDE,
    bare,
    fit,
    inset,
    percent_ticks,
    style,
    titled,
    to_svg,
)

__all__ = ["Box", "BoxSeries", "Boxes", "boxes_data", "draw_boxes"]

PUBLISHED = "quoted from the paper: mean ± standard deviation"


@dataclass(frozen=True)
class Box:
    """The spread of some values: their extremes, quartiles and median, and the values themselves."""

    low: float
    first: float
    median: float
    third: float
    high: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class BoxSeries:
    """One setting over all categories; None where it was not measured."""

    name: str
    series: str
    boxes: tuple[Box | None, ...]


@dataclass(frozen=True)
class Boxes:
    """A box for each category and setting."""

    about: str
    across: str
    """What the categories are."""
    categories: tuple[str, ...]
    series: tuple[BoxSeries, ...]
    published: tuple[tuple[float, float | None] | None, ...]
    """Mean and deviation by category, as shares."""
    detail: str = ""
    """A line beneath the title."""


def boxes_data(
    about: str,
    across: str,
    categories: Sequence[str],
    values: Mapping[str, Sequence[Sequence[float]]],
    published: Sequence[tuple[float, float | None] | None] = (),
    *,
    detail: str = "",
) -> Boxes:
    """Boxes of `values`: shares by setting, then by category; quartiles interpolate between values.

    A setting without any value is left out, and the others keep their colours.
    """
    slots = ["after", "other-1", "other-2", "other-3", "other-4", "other-5", "other-6"]
    series = tuple(
        BoxSeries(name, slot, tuple(_box(cell) for cell in cells))
        for (name, cells), slot in zip(values.items(), slots, strict=False)
        if any(cells)
    )
    return Boxes(about, across, tuple(categories), series, tuple(published) or (None,) * len(categories), detail)


def _box(values: Sequence[float]) -> Box | None:
    if not values:
        return None
    low, first, median, third, high = (float(q) for q in np.percentile(values, [0, 25, 50, 75, 100]))
    return Box(low, first, median, third, high, tuple(values))


def draw_boxes(data: Boxes) -> str:
    """Boxes side by side, whiskers to the extremes, a dot a seed; the published mean ± deviation as a diamond.

    Empty where nothing was measured.
    """
    if not any(box for series in data.series for box in series.boxes):
        return ""
    quoted = any(data.published)
    slots = len(data.series) + quoted
    with style():
        left, right, below = 58, 12, 330 + 22 * slots  # pixels
        figure, ground, head = titled(data.about, data.detail, WIDE, below)
        for i, series in enumerate(data.series):
            ground.add_patch(Rectangle((2, head + 9 + 22 * i), 12, 12, linewidth=0, color=SERIES[series.series]))
            ground.text(24, head + 19 + 22 * i, fit(series.name, WIDE - 24, 12), color=INK, fontsize=12)
        if quoted:
            y = head + 15 + 22 * len(data.series)
            ground.plot([8], [y], marker="D", color=INK, markersize=6)
            ground.text(24, y + 4, PUBLISHED, color=INK, fontsize=12)
        axes = inset(figure, left, head + 12 + 22 * slots, right, bottom=48)
        wide = 0.8 / slots
        for s, series in enumerate(data.series):
            for c, box in enumerate(series.boxes):
                if box is not None:
                    _draw_box(axes, c - 0.4 + wide * (s + 0.5), 0.7 * wide, box, SERIES[series.series])
        for c, cell in enumerate(data.published):
            if cell is not None:
                x = c - 0.4 + wide * (slots - 0.5)
                axes.errorbar(
                    [x], [cell[0]], yerr=None if cell[1] is None else [cell[1]], marker="D", markersize=6, color=INK,
                    elinewidth=1.5, capsize=4, zorder=3,
                )  # fmt: skip
        for c in range(1, len(data.categories)):
            axes.axvline(c - 0.5, color=TRACK, linewidth=1, zorder=0)
        axes.set_xlim(-0.5, len(data.categories) - 0.5)
        axes.set_xticks(range(len(data.categories)), data.categories)
        percent_ticks(axes, 5)
        ground.text((left + WIDE - right) / 2, head + below - 13, data.across, color=MUTED, fontsize=12, ha="center")
        bare(axes)
        axes.set_axisbelow(True)
        return to_svg(figure, "boxes", f"{data.about}. {_spoken(data)}")


def _draw_box(axes: Axes, x: float, wide: float, box: Box, colour: str) -> None:
    axes.plot([x, x], [box.low, box.high], color=colour, linewidth=1.5, solid_capstyle="butt")
    axes.add_patch(
        Rectangle((x - wide / 2, box.first), wide, box.third - box.first, facecolor=PAPER, edgecolor=colour, zorder=2)
    )
    axes.plot([x - wide / 2, x + wide / 2], [box.median] * 2, color=colour, linewidth=2.5, zorder=3)
    axes.plot([x] * len(box.values), box.values, linestyle="", marker="o", markersize=3.5, color=colour, zorder=4)


def _spoken(data: Boxes) -> str:
    parts = [
        f"{series.name}: "
        + ", ".join(
            f"{category} median {100 * box.median:.1f} %"
            for category, box in zip(data.categories, series.boxes, strict=True)
            if box is not None
        )
        for series in data.series
    ]
    return "; ".join(parts) + "."
