"""What methods reach against what they cost: accuracy over time, a point a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import FuncFormatter, MaxNLocator

from ipg.evaluation.spread import Spread
from ipg.report.figures.drawing import (
    INK,
    MARKERS,
    MUTED,
    ROUND,
    SERIES,
    WIDE,
    bare,
    fit,
    inset,
    percent_ticks,
    style,
    titled,
    to_svg,
)

__all__ = ["Cost", "Costs", "draw_costs"]

ACROSS = "time over that of plain training"


@dataclass(frozen=True)
class Cost:
    """One setting: what it reaches, as a share, and its time over that of plain training."""

    name: str
    worth: Spread
    time: Spread


@dataclass(frozen=True)
class Costs:
    """Settings to be weighed against each other, plain training first."""

    about: str
    points: tuple[Cost, ...]
    detail: str = ""
    """A line beneath the title."""


def draw_costs(data: Costs) -> str:
    """A marker a setting, with a line for its standard deviation either way. Empty without settings."""
    if not data.points:
        return ""
    slots = _slots(data.points)
    with style():
        left, right, entries = 58, 12, 12 + 22 * len(data.points)  # pixels
        below = entries + 300
        figure, ground, head = titled(data.about, data.detail, WIDE, below)
        axes = inset(figure, left, head + entries, right, bottom=48)
        axes.axvline(1.0, color=MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        for i, (point, slot) in enumerate(zip(data.points, slots, strict=True)):
            y = head + 15 + 22 * i
            ground.plot([8], [y], marker=MARKERS[slot], color=SERIES[slot], markersize=8)
            ground.text(24, y + 4, fit(point.name, WIDE - 24, 12), color=INK, fontsize=12)
            axes.errorbar(
                [point.time.mean], [point.worth.mean], xerr=_whisker(point.time), yerr=_whisker(point.worth),
                marker=MARKERS[slot], markersize=9, color=SERIES[slot], elinewidth=1.5, capsize=3, zorder=3,
            )  # fmt: skip
        axes.set_xlim(0.9, max(1.5, 1.05 * max(point.time.mean for point in data.points)))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}\N{NO-BREAK SPACE}×"))
        percent_ticks(axes, 5)
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]), top=min(1.02, axes.get_ylim()[1]))
        ground.text((left + WIDE - right) / 2, head + below - 13, ACROSS, color=MUTED, fontsize=12, ha="center")
        bare(axes, grid="both")
        axes.set_axisbelow(True)
        spoken = "; ".join(f"{p.name}: {100 * p.worth.mean:.1f} % at {p.time.mean:.2f} times" for p in data.points)
        return to_svg(figure, "costs", f"{data.about}. {spoken}.")


def _slots(points: Sequence[Cost]) -> list[str]:
    """A colour and a marker for each: the first is plain training's; after eight they come again."""
    known = list(SERIES)
    return [known[i % len(known)] for i in range(len(points))]


def _whisker(found: Spread) -> list[float] | None:
    return None if found.deviation is None else [found.deviation]
