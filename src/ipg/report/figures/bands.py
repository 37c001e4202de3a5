"""Measures over steps as lines with bands: the mean over seeds and its standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator

from ipg.report.figures.drawing import INK, MUTED, ROUND, SERIES, WIDE, bare, fit, inset, style, titled, to_svg

__all__ = ["Band", "Bands", "bands_data", "draw_bands"]

SLOTS = tuple(SERIES)
MOST_POINTS = 2000
"""Lines keep so many points, so that no peak of a thousand steps is lost."""


@dataclass(frozen=True)
class Band:
    """Mean and deviation of one measure at every step shown."""

    name: str
    series: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Bands:
    """One panel."""

    title: str
    across: str
    bands: tuple[Band, ...]
    line: tuple[float, str] | None = None
    """A level to draw, and what it is."""
    detail: str = ""
    """A line beneath the title."""


def bands_data(
    title: str,
    values: Mapping[str, Sequence[Sequence[float]]],
    *,
    across: str = "epoch",
    first: int = 1,
    line: tuple[float, str] | None = None,
    slots: Sequence[str] = SLOTS[1:],
    detail: str = "",
) -> Bands:
    """Bands of `values`: by measure, a sequence a seed, all of one length; the deviation is that of n - 1."""
    bands = []
    for (name, seeds), slot in zip(values.items(), slots, strict=False):
        table = np.asarray(seeds, dtype=np.float64)  # (seeds, steps)
        shown = np.unique(np.linspace(0, table.shape[1] - 1, MOST_POINTS).round().astype(int))
        mean = table.mean(axis=0)[shown]
        deviation = table.std(axis=0, ddof=1)[shown] if len(table) > 1 else np.zeros(len(shown))
        steps = tuple(int(step) + first for step in shown)
        bands.append(Band(name, slot, steps, tuple(mean.tolist()), tuple(deviation.tolist())))
    return Bands(title, across, tuple(bands), line, detail)


def draw_bands(data: Bands, *, name: str = "bands", height: int = 250) -> str:
    """The mean as a line and mean ± deviation as a band for each measure; a dotted line for the level."""
    entries = [(band.name, SERIES[band.series], "-") for band in data.bands]
    if data.line is not None:
        entries.append((data.line[1], INK, ":"))
    with style():
        figure, ground, head = titled(data.title, data.detail, WIDE, height + 20 * len(entries))
        for i, (text, colour, dash) in enumerate(entries):
            y = head + 15 + 20 * i
            ground.plot([0, 20], [y, y], color=colour, linewidth=2, linestyle=dash)
            ground.text(28, y + 4, fit(text, WIDE - 28, 12), color=INK, fontsize=12)
        axes = inset(figure, left=62, top=head + 12 + 20 * len(entries), right=24, bottom=44)
        for band in data.bands:
            mean, deviation = np.array(band.mean), np.array(band.deviation)
            colour = SERIES[band.series]
            if deviation.any():
                axes.fill_between(band.steps, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
            axes.plot(band.steps, mean, color=colour, linewidth=1.5)
        if data.line is not None:
            axes.axhline(data.line[0], color=INK, linewidth=1.5, linestyle=":")
        axes.set_xlim(data.bands[0].steps[0], data.bands[0].steps[-1])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND))
        axes.set_xlabel(data.across, color=MUTED, fontsize=12, labelpad=6)
        bare(axes)
        ends = "; ".join(f"{band.name} from {band.mean[0]:.3g} to {band.mean[-1]:.3g}" for band in data.bands)
        return to_svg(figure, name, f"{data.title}. {ends}.")
