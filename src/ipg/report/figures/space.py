"""Updates of two parameters as arrows in their plane, over the level lines of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ipg.report.figures.drawing import INK, MUTED, SERIES, WIDE, bare, fit, inset, style, titled, to_svg

__all__ = ["Arrow", "Space", "draw_space", "space_data"]

Point = tuple[float, float]
POINTS = 80
"""Of the grid over the plane, either way."""


@dataclass(frozen=True)
class Arrow:
    """One update."""

    start: Point
    end: Point
    series: str


@dataclass(frozen=True)
class Space:
    """Arrows one after the other, and a loss over the plane around them."""

    about: str
    axes: tuple[str, str]
    arrows: tuple[Arrow, ...]
    legend: tuple[tuple[str, str], ...]
    """Series and what they are."""
    across: NDArray[np.float64]  # (n,)
    up: NDArray[np.float64]  # (m,)
    loss: NDArray[np.float64]  # (m, n)


def space_data(
    about: str,
    axes: tuple[str, str],
    arrows: Sequence[Arrow],
    legend: Sequence[tuple[str, str]],
    loss: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> Space:
    """The plane that holds all arrows and the origin, with a margin, and `loss` on a grid over it."""
    ends = np.array([point for arrow in arrows for point in (arrow.start, arrow.end)] + [(0.0, 0.0)])
    low, high = ends.min(axis=0), ends.max(axis=0)
    room = 0.12 * (high - low)
    across, up = (np.linspace(low[i] - room[i], high[i] + room[i], POINTS) for i in (0, 1))
    return Space(about, axes, tuple(arrows), tuple(legend), across, up, loss(across, up))


def draw_space(data: Space) -> str:
    """The arrows in their colours over grey level lines; a ring marks the start."""
    with style():
        figure, ground, head = titled(data.about, "", WIDE, 400 + 20 * len(data.legend))
        for i, (series, text) in enumerate(data.legend):
            y = head + 13 + 20 * i
            ground.plot([0, 20], [y, y], color=SERIES[series], linewidth=2.5)
            ground.text(28, y + 4, fit(text, WIDE - 28, 12), color=INK, fontsize=12)
        axes = inset(figure, left=58, top=head + 10 + 20 * len(data.legend), right=14, bottom=48)
        axes.contour(data.across, data.up, data.loss, levels=14, colors=MUTED, linewidths=0.5)
        axes.axvline(0, color=MUTED, linewidth=1, linestyle=":")
        for arrow in data.arrows:
            _draw_arrow(axes, arrow)
        start = data.arrows[0].start
        axes.plot([start[0]], [start[1]], marker="o", markersize=9, markerfacecolor="none", markeredgecolor=INK)
        axes.set_xlim(data.across[0], data.across[-1])
        axes.set_ylim(data.up[0], data.up[-1])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set_xlabel(data.axes[0], color=MUTED, fontsize=12, labelpad=6)
        axes.set_ylabel(data.axes[1], color=MUTED, fontsize=12, labelpad=6)
        bare(axes, grid=None, pad=6)
        end = data.arrows[-1].end
        told = f"from ({start[0]:.2f}, {start[1]:.2f}) to ({end[0]:.2f}, {end[1]:.2f}) in {len(data.arrows)} updates"
        return to_svg(figure, "space", f"{data.about}: {told}.")


def _draw_arrow(axes: Axes, arrow: Arrow) -> None:
    axes.annotate(
        "", xy=arrow.end, xytext=arrow.start, zorder=4,
        arrowprops={"arrowstyle": "-|>", "color": SERIES[arrow.series], "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0,
                    "mutation_scale": 12},
    )  # fmt: skip
