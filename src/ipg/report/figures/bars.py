"""Shares of several runs as blocks of bars, with intervals: accuracy by group, and what pairs tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ipg.evaluation.statistics import Interval
from ipg.report.figures.drawing import (
    INK,
    MUTED,
    SERIES,
    TRACK,
    bar,
    canvas,
    style,
    text_width,
    to_svg,
    whisker,
    wrapped,
)
from ipg.report.views import RunView, group_count, number, percent, series, share_interval

__all__ = ["Bars", "draw_bars", "group_bars_data", "pair_bars_data"]

WIDTH = 400
"""In pixels."""
LINES = 4
"""What a name takes at most; the table beside the bars has longer ones in full."""


@dataclass(frozen=True)
class Bars:
    """A block of bars for each thing measured, and in it a bar a run."""

    about: str
    """What is measured, as it is read out: `Accuracy by group`."""
    runs: tuple[str, ...]
    series: tuple[str, ...]
    blocks: tuple[str, ...]
    """What each block is of, e.g. the groups."""
    counts: tuple[int | None, ...]
    """Images or pairs of each block."""
    shares: tuple[tuple[float | None, ...], ...]
    """By run, then by block; None where it was not measured."""
    intervals: tuple[tuple[Interval | None, ...], ...]
    """Of the shares; None where it is not known on how many images they were measured."""

    def of(self, runs: Sequence[int]) -> Bars:
        """The given runs alone."""
        return replace(
            self,
            runs=tuple(self.runs[r] for r in runs),
            series=tuple(self.series[r] for r in runs),
            shares=tuple(self.shares[r] for r in runs),
            intervals=tuple(self.intervals[r] for r in runs),
        )

    def take(self, blocks: Sequence[int]) -> Bars:
        """The given blocks alone."""
        return replace(
            self,
            blocks=tuple(self.blocks[b] for b in blocks),
            counts=tuple(self.counts[b] for b in blocks),
            shares=tuple(tuple(row[b] for b in blocks) for row in self.shares),
            intervals=tuple(tuple(row[b] for b in blocks) for row in self.intervals),
        )


def group_bars_data(runs: Sequence[RunView]) -> Bars:
    """Accuracy by group on the test split at the selected epoch; groups in the order in which the runs name them."""
    tables = [run.metrics.get("groups") or {} for run in runs]
    groups = tuple(dict.fromkeys(group for table in tables for group in table))
    rows = [[table.get(group) or {} for group in groups] for table in tables]
    shares = [[number(cell.get("accuracy")) for cell in row] for row in rows]
    counts = [[group_count(cell) for cell in row] for row in rows]
    return Bars(
        about="Accuracy by group",
        runs=tuple(run.name for run in runs),
        series=series(runs),
        blocks=groups,
        counts=tuple(next((row[g] for row in counts if row[g] is not None), None) for g in range(len(groups))),
        shares=tuple(map(tuple, shares)),
        intervals=tuple(tuple(map(share_interval, *row)) for row in zip(shares, counts, strict=True)),
    )


def pair_bars_data(runs: Sequence[RunView]) -> Bars:
    """How often runs change their answer within a held-out pair, and how often they are right about both members.

    Runs without held-out pairs are left out.
    """
    slots = dict(zip(range(len(runs)), series(runs), strict=True))
    known = [i for i, run in enumerate(runs) if run.disagreement is not None]
    answers = [runs[i].pairs for i in known]
    totals = [answer.total if answer else None for answer in answers]
    shares = [
        (runs[i].disagreement, answer.both_right / answer.total if answer else None)
        for i, answer in zip(known, answers, strict=True)
    ]
    count = totals[0] if len(set(totals)) == 1 else None
    return Bars(
        about="Held-out pairs",
        runs=tuple(runs[i].name for i in known),
        series=tuple(slots[i] for i in known),
        blocks=("The answer changes", "Both answers are right"),
        counts=(count, count),
        shares=tuple(shares),
        intervals=tuple(
            tuple(share_interval(share, total) for share in row) for row, total in zip(shares, totals, strict=True)
        ),
    )


def draw_bars(data: Bars, *, name: str = "bars") -> str:
    """A bar a run in every block, the number at its end, a whisker for its interval. Empty where nothing was measured.

    Args:
        data: what to draw.
        name: what its ids begin with, so that those of two figures on one page differ.
    """
    shown = [b for b in range(len(data.blocks)) if any(row[b] is not None for row in data.shares)]
    if not shown:
        return ""
    thick, gap, line, head, between = 14, 5, 17, 22, 16  # pixels
    full = WIDTH - 60  # length of 100 %

    with style():
        counts = ["" if count is None else f"n = {count:,}" for count in data.counts]
        rooms = [WIDTH - text_width(count, 12) - 12 for count in counts]
        names = [wrapped(name, room, 13, "bold", most=LINES) for name, room in zip(data.blocks, rooms, strict=True)]
        block = head + len(data.runs) * (thick + gap) - gap
        height = sum(block + between + line * max(len(names[b]) - 1, 0) for b in shown) - between + 2
        figure, axes = canvas(WIDTH, height)
        y = 0
        for b in shown:
            for place, part in enumerate(names[b]):
                axes.text(0, y + 13 + line * place, part, color=INK, fontsize=13, fontweight="bold")
            axes.text(WIDTH, y + 13, counts[b], color=MUTED, fontsize=12, ha="right")
            y += head + line * max(len(names[b]) - 1, 0)
            for values, intervals, slot in zip(data.shares, data.intervals, data.series, strict=True):
                share, interval = values[b], intervals[b]
                bar(axes, y, full, thick, TRACK)
                if share is not None:
                    bar(axes, y, max(2.0, full * min(1.0, max(0.0, share))), thick, SERIES[slot])
                if interval is not None:
                    whisker(axes, y + thick / 2, full * interval.low, full * interval.high)
                colour = MUTED if share is None else INK
                axes.text(WIDTH, y + 11.5, percent(share), color=colour, fontsize=12, ha="right")
                y += thick + gap
            y += between - gap
        spoken = "; ".join(
            f"{run}: " + ", ".join(f"{data.blocks[b]} {percent(row[b])}" for b in shown)
            for run, row in zip(data.runs, data.shares, strict=True)
        )
        return to_svg(figure, name, f"{data.about}. {spoken}.")
