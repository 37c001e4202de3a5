"""Accuracy and pair disagreement by epoch, as line plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from ipg.evaluation.selection import is_refit
from ipg.report.figures.drawing import MARKERS, MUTED, NARROW, SERIES, bare, inset, percent_ticks, style, titled, to_svg
from ipg.report.views import RunView, number, percent, series

__all__ = ["Line", "Panel", "curves_data", "draw_curves"]


@dataclass(frozen=True)
class Line:
    """One metric of one run, by epoch."""

    run: str
    series: str
    epochs: tuple[int, ...]
    values: tuple[float | None, ...]
    selected: int | None
    """The epoch whose model was kept."""
    refit: bool = False
    """Whether the last point is no epoch, but the kept model fitted anew."""


@dataclass(frozen=True)
class Panel:
    """One metric of all runs that have it."""

    key: str
    title: str
    lines: tuple[Line, ...]


def curves_data(runs: Sequence[RunView]) -> tuple[Panel, ...]:
    """Average accuracy, worst-group accuracy and pair disagreement by epoch; a metric that no run has is left out.

    Disagreement is that of held-out pairs; where no run has any, that of the training pairs, and the title says so.
    """

    def of_test(key: str) -> list[list[float | None]]:
        return [[number((row.get("test") or {}).get(key)) for row in run.epochs] for run in runs]

    def of_row(key: str) -> list[list[float | None]]:
        return [[number(row.get(key)) for row in run.epochs] for run in runs]

    def measured(columns: list[list[float | None]]) -> bool:
        return any(value is not None for column in columns for value in column)

    disagreement, pairs = of_row("pair_disagreement"), "Pair disagreement"
    if not measured(disagreement):
        disagreement, pairs = of_row("train_pair_disagreement"), "Disagreement of training pairs"
    panels = []
    for key, title, columns in (
        ("average", "Average accuracy", of_test("average")),
        ("worst_group", "Worst-group accuracy", of_test("worst_group")),
        ("disagreement", pairs, disagreement),
    ):
        lines = []
        for run, slot, values in zip(runs, series(runs), columns, strict=True):
            if any(value is not None for value in values):
                epochs = tuple(int(row.get("epoch", i)) for i, row in enumerate(run.epochs, start=1))
                selected = number(run.result.get("selected_epoch"))
                kept = None if selected is None else int(selected)
                refit = bool(run.epochs) and is_refit(run.epochs[-1], run.config)
                lines.append(Line(run.name, slot, epochs, tuple(values), kept, refit))
        if lines:
            panels.append(Panel(key, title, tuple(lines)))
    return tuple(panels)


def draw_curves(data: Panel) -> str:
    """One panel as a line plot over epochs; a ring marks the selected epoch, a gap a missing value, dots a refit."""
    with style():
        figure, _, head = titled(data.title, "", NARROW, 230)
        axes = inset(figure, left=50, top=head + 24, right=12, bottom=44)
        values = [value for line in data.lines for value in line.values if value is not None]
        largest = max(values, default=1.0)
        limit = 1.0 if largest > 0.5 or data.key != "disagreement" else max(0.01, 1.2 * largest)
        for line in data.lines:
            heights = [math.nan if value is None else value for value in line.values]
            trained = len(heights) - line.refit
            axes.plot(
                line.epochs[:trained], heights[:trained], color=SERIES[line.series], linewidth=2, zorder=3,
                solid_capstyle="round", clip_on=False, marker=MARKERS[line.series], markersize=6,
                markevery=-(-len(heights) // 16),
            )  # fmt: skip
            if line.refit and not math.isnan(heights[-1]):
                axes.plot(
                    line.epochs[-2:], heights[-2:], color=SERIES[line.series], linewidth=1.4, linestyle=":", zorder=3,
                    clip_on=False, marker=MARKERS[line.series], markersize=6, markevery=[-1],
                )  # fmt: skip
                rises = len(heights) < 2 or math.isnan(heights[-2]) or heights[-1] >= heights[-2]
                axes.annotate(
                    "refit", (line.epochs[-1], heights[-1]), (8, 9 if rises else -18), ha="right",
                    textcoords="offset points", color=MUTED, fontsize=11,
                )  # fmt: skip
            at = [i for i, epoch in enumerate(line.epochs) if epoch == line.selected and not math.isnan(heights[i])]
            axes.plot(
                [line.epochs[i] for i in at], [heights[i] for i in at], linestyle="", clip_on=False, zorder=4,
                marker="o", markersize=13, markerfacecolor="none", markeredgecolor=SERIES[line.series],
                markeredgewidth=1.4,
            )  # fmt: skip
        epochs = [epoch for line in data.lines for epoch in line.epochs]
        alone = 0.5 if min(epochs) == max(epochs) else 0
        axes.set_xlim(min(epochs) - alone, max(epochs) + alone)
        axes.set_ylim(0, limit)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        percent_ticks(axes, 4, ".0f" if limit > 0.05 else ".1f")
        axes.set_xlabel("Epoch", color=MUTED, fontsize=12, labelpad=6)
        bare(axes)
        ends = []
        for line in data.lines:
            known = [value for value in line.values if value is not None]
            after = " after a refit" if line.refit and line.values[-1] is not None else ""
            ends.append(f"{line.run} from {percent(known[0])} to {percent(known[-1])}{after}")
        return to_svg(figure, data.key, f"{data.title} by epoch. {'; '.join(ends)}.")
