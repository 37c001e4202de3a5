"""Several methods, every seed a dot: accuracy by group, and differences to one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ipg.evaluation.spread import Spread
from ipg.report.figures.drawing import INK, MUTED, PAPER, SERIES, TRACK, WIDE, canvas, fit, style, text_width, to_svg

__all__ = ["Dots", "Strip", "draw_dots", "points"]

ROW, HEAD, BETWEEN, AXIS = 24, 26, 14, 26
"""Pixels: a strip, the head of a block, the room between blocks, the axis beneath all."""


@dataclass(frozen=True)
class Strip:
    """One method: a value a seed, and what they come to."""

    name: str
    series: str
    values: tuple[float, ...]
    spread: Spread | None
    """None without values."""


@dataclass(frozen=True)
class Dots:
    """A block of strips for each thing measured."""

    about: str
    """What is measured, as it is read out: `Accuracy by group`."""
    blocks: tuple[tuple[str, str, tuple[Strip, ...]], ...]
    """Head, a remark on its right, e.g. how many images there are, and the strips."""
    low: float = 0.0
    high: float = 1.0
    """What the scale reaches from and to."""
    signed: bool = False
    """Whether values are differences: in points, with their sign and a line at zero."""

    def written(self, value: float | None) -> str:
        """A value as the figure writes it."""
        if value is None:
            return "–"
        return points(value) if self.signed else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def points(value: float, digits: int = 1) -> str:
    """A difference in percentage points with its sign; zero has none."""
    text = f"{100 * value:+.{digits}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def draw_dots(data: Dots, *, name: str = "dots", width: int = WIDE, names: float = 150) -> str:
    """A ring a seed, a bar at the mean, a line for its interval, the mean at the end. Empty without a block.

    Names of strips have `names` pixels at the most.
    """
    if not data.blocks:
        return ""
    strips = [strip for _, _, own in data.blocks for strip in own]
    left = min(names, 14 + max(text_width(strip.name, 12) for strip in strips))
    right = 12 + text_width(data.written(-1.0 if data.signed else 1.0), 12)
    heights = [HEAD + ROW * len(own) + BETWEEN for _, _, own in data.blocks]
    height = sum(heights) - BETWEEN + AXIS
    scale = (width - left - right) / (data.high - data.low)

    def place(value: float) -> float:
        return left + scale * (min(data.high, max(data.low, value)) - data.low)

    with style():
        figure, axes = canvas(width, height)
        y = 0.0
        for (head, remark, own), tall in zip(data.blocks, heights, strict=True):
            room = width - text_width(remark, 12) - 12
            axes.text(0, y + 14, fit(head, room, 13, "bold"), color=INK, fontsize=13, fontweight="bold")
            axes.text(width, y + 14, remark, color=MUTED, fontsize=12, ha="right")
            for number, strip in enumerate(own):
                middle = y + HEAD + ROW * number + ROW / 2
                axes.plot([left, width - right], [middle, middle], color=TRACK, linewidth=1)
                axes.text(0, middle + 4.5, fit(strip.name, left - 10, 12), color=INK, fontsize=12)
                _strip(axes, middle, strip, [place(value) for value in strip.values], place)
                mean = data.written(None if strip.spread is None else strip.spread.mean)
                axes.text(width, middle + 4.5, mean, color=INK, fontsize=12, ha="right")
            y += tall
        _axis(axes, data, height - AXIS, place)
        spoken = "; ".join(
            f"{head}: " + ", ".join(f"{s.name} {data.written(s.spread.mean if s.spread else None)}" for s in own)
            for head, _, own in data.blocks
        )
        return to_svg(figure, name, f"{data.about}. {spoken}.")


def _strip(axes: Axes, y: float, strip: Strip, xs: Sequence[float], place: Callable[[float], float]) -> None:
    """The seeds of a method as rings, its interval as a line, its mean as a bar."""
    colour = SERIES[strip.series]
    if strip.spread is not None and strip.spread.interval is not None:
        ends = [place(end) for end in strip.spread.interval]
        axes.plot(ends, [y, y], color=colour, linewidth=3, alpha=0.45, solid_capstyle="butt", clip_on=False)
    axes.plot(
        xs, [y] * len(xs), linestyle="", marker="o", markersize=7, markerfacecolor=PAPER, markeredgecolor=colour,
        markeredgewidth=1.6, clip_on=False, zorder=3,
    )  # fmt: skip
    if strip.spread is not None:
        x = place(strip.spread.mean)
        axes.plot([x, x], [y - 8, y + 8], color=colour, linewidth=2.4, solid_capstyle="butt", clip_on=False, zorder=4)


def _axis(axes: Axes, data: Dots, bottom: float, place: Callable[[float], float]) -> None:
    """Numbers beneath the strips, and a line at zero where differences are shown."""
    span = data.high - data.low
    ticks = [data.low + span * share for share in (0, 0.25, 0.5, 0.75, 1)]
    if data.signed:
        ticks = [data.low, 0.0, data.high]
        x = place(0.0)
        axes.plot([x, x], [HEAD - 4, bottom + 2], color=MUTED, linewidth=1, zorder=1)
    for tick in ticks:
        text = points(tick, 0) if data.signed else f"{100 * tick:.0f}"
        axes.text(place(tick), bottom + 18, text, color=MUTED, fontsize=11, ha="center")
