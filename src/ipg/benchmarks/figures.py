"""How cost grows, as a figure: one function returns the data, one draws it.

The SVG is written by hand, so that the same rows give the same bytes whatever else is installed, and brings its own
light card, so that it reads the same on a dark page.
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ipg.benchmarks.rows import Row

__all__ = ["TITLES", "Curve", "draw_growth", "growth_data", "power", "slope"]

TITLES = {
    "batch": "task images a step",
    "pair_batch": "pairs a correction",
    "pairs": "pairs in all",
    "classes": "classes",
    "features": "features",
    "side": "side of the images",
}
"""The sizes that are varied, in words."""
SERIES = {"erm": ("plain", "#c2540a"), "ipg": ("guided", "#0069b4")}
"""What is drawn at every size: its name in words and its colour."""
INK, MUTED, RULE, CARD = "#1b1f24", "#5b6470", "#e8ebef", "#ffffff"
WIDTH, PANEL, HEAD, COLUMNS = 800, (256, 232), 46, 3
INSIDE = (44, 34, 12, 54)
"""Left, top, right and bottom of a panel's axes, in pixels."""


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power p of the law cost = c · size^p that fits best: least squares of the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def power(value: float) -> str:
    """A slope to two digits; what rounds to nothing has no sign."""
    return f"{round(value, 2) + 0.0:.2f}"


@dataclass(frozen=True)
class Curve:
    """Cost of a step at every value of one size."""

    name: str
    sizes: tuple[int, ...]
    costs: dict[str, tuple[float, ...]]
    """Milliseconds of `erm` and of `ipg`, or what else is drawn."""
    ratios: tuple[float, ...] = ()
    ideals: tuple[float, ...] = ()

    def slope(self, method: str) -> float:
        """The power over the whole range."""
        return slope(self.sizes, self.costs[method])

    def last_slope(self, method: str) -> float:
        """The power between the two largest sizes, where what does not grow weighs least."""
        return slope(self.sizes[-2:], self.costs[method][-2:])


def growth_data(rows: Iterable[Row]) -> tuple[Curve, ...]:
    """A curve for each size of which at least two values were measured with both methods, in the order of `TITLES`."""
    found: dict[str, dict[int, dict[str, Row]]] = {}
    for row in rows:
        case = re.fullmatch(r"(\w+)=(\d+) (erm|ipg)", row["case"])
        if row["benchmark"] == "growth" and case:
            found.setdefault(case[1], {}).setdefault(int(case[2]), {})[case[3]] = row
    curves = []
    for name in [*TITLES, *sorted(set(found) - set(TITLES))]:
        points = {size: by for size, by in sorted(found.get(name, {}).items()) if set(by) == set(SERIES)}
        if len(points) > 1:
            curves.append(
                Curve(
                    name=name,
                    sizes=tuple(points),
                    costs={method: tuple(by[method]["value"] for by in points.values()) for method in SERIES},
                    ratios=tuple(by["ipg"]["ratio"] for by in points.values()),
                    ideals=tuple(by["ipg"]["ideal"] for by in points.values()),
                )
            )
    return tuple(curves)


def draw_growth(data: Sequence[Curve], *, title: str, series: Mapping[str, tuple[str, str]] = SERIES) -> str:
    """A panel a size, both axes logarithmic, with the slopes beneath; empty without curves."""
    if not data:
        return ""
    height = HEAD + -(-len(data) // COLUMNS) * PANEL[1] + 8
    spoken = "; ".join(f"{TITLES.get(curve.name, curve.name)}: slope {_slopes(curve, series)}" for curve in data)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        f' role="img" aria-label="{html.escape(f"{title}. {spoken}.")}"',
        ' font-family="Segoe UI, Helvetica Neue, Helvetica, Arial, sans-serif">',
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="14" fill="{CARD}" stroke="{RULE}"/>',
        _text(18, 28, title, size=14, bold=True),
    ]
    for place, (name, colour) in enumerate(series.values()):
        x = WIDTH - 150 + 70 * place
        parts += [f'<circle cx="{x}" cy="24" r="4" fill="{colour}"/>', _text(x + 9, 28, name)]
    for place, curve in enumerate(data):
        x, y = 16 + place % COLUMNS * PANEL[0], HEAD + place // COLUMNS * PANEL[1]
        parts.append(f'<g transform="translate({x} {y})">{"".join(_panel(curve, series))}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(curve: Curve, series: Mapping[str, tuple[str, str]]) -> Iterable[str]:
    left, top, right, bottom = INSIDE
    width, height = PANEL[0] - left - right, PANEL[1] - top - bottom
    every = [cost for costs in curve.costs.values() for cost in costs]
    low, high = math.log(min(every)) - 0.1, math.log(max(every)) + 0.1
    if high - low < 2:  # at least a factor of seven, so that what hardly grows looks it
        low, high = (low + high) / 2 - 1, (low + high) / 2 + 1
    first, last = math.log(curve.sizes[0]), math.log(curve.sizes[-1])

    def across(size: float) -> float:
        return left + width * (math.log(size) - first) / (last - first)

    def down(cost: float) -> float:
        return top + height * (high - math.log(cost)) / (high - low)

    yield _text(left, 20, TITLES.get(curve.name, curve.name), size=13, bold=True)
    for tick in _ticks(math.exp(low), math.exp(high)):
        yield f'<path d="M{left} {down(tick):.1f}H{left + width}" stroke="{RULE}"/>'
        yield _text(left - 6, down(tick) + 4, f"{tick:g}", colour=MUTED, at="end")
    for size in curve.sizes:
        yield _text(across(size), top + height + 16, _count(size), colour=MUTED, at="middle")
    for method, (_, colour) in series.items():
        points = [(across(x), down(y)) for x, y in zip(curve.sizes, curve.costs[method], strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    yield _text(left, top + height + 36, f"slope {_slopes(curve, series)}")


def _slopes(curve: Curve, series: Mapping[str, tuple[str, str]]) -> str:
    return ", ".join(f"{power(curve.slope(method))} {name}" for method, (name, _) in series.items())


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … between two positive numbers; powers of ten alone where that would be many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [lead * 10.0**power for power in decades for lead in (1, 2, 5) if low <= lead * 10.0**power <= high]
    return fine if len(fine) <= 6 else [tick for tick in fine if math.log10(tick).is_integer()]


def _count(number: int) -> str:
    for much, letter in ((1_000_000, "M"), (1000, "k")):
        if number >= much and number % much == 0:
            return f"{number // much}{letter}"
    return f"{number}"


def _text(
    x: float, y: float, words: str, *, size: int = 11, colour: str = INK, bold: bool = False, at: str = ""
) -> str:
    more = (' font-weight="600"' if bold else "") + (f' text-anchor="{at}"' if at else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"{more}>{html.escape(words)}</text>'
