"""What was measured, as the page says it: the headline, the cards and the table, with 95 % intervals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ipg.evaluation.statistics import Interval, difference, lowest
from ipg.report.figures import Bars
from ipg.report.settings import duration, seconds
from ipg.report.views import RunView, number, percent, share_interval, span

__all__ = ["average", "card", "compared", "headline", "short", "table", "unnumbered", "worst_block", "worst_group"]

Cell = tuple[str, str]
"""A value and its interval, as text."""


def compared(runs: Sequence[RunView]) -> list[int]:
    """Which runs the headline names: the first `before` and the first `after`; without either, the first run."""
    roles = [run.role for run in runs]
    return [roles.index(role) for role in ("before", "after") if role in roles] or list(range(len(runs)))[:1]


def headline(runs: Sequence[RunView], slots: Sequence[str]) -> dict[str, object]:
    """The parts of `On clothes whose colour changed: plain training 2 %, guided 96 % in the worst group`.

    Accuracy in the worst group, or on average where a run does not tell it; nothing of runs that tell neither.
    """
    values = [worst_group(run) for run in runs]
    worst = all(value is not None for value in values)
    values = values if worst else [average(run) for run in runs]
    return {
        "worst": worst,
        "parts": [
            {"name": unnumbered(run.name), "series": slot, "value": percent(value, 0)}
            for run, slot, value in zip(runs, slots, values, strict=True)
            if value is not None
        ],
    }


def short(name: str) -> str:
    """`Plain training (ERM)` within a sentence: `plain training`. Names and abbreviations keep their capitals."""
    name = name.partition(" (")[0]
    return name[:1].lower() + name[1:] if name[1:] == name[1:].lower() else name


def unnumbered(name: str) -> str:
    """The same without the number that tells runs of one method apart: before a figure it would read as part of it."""
    return re.sub(r" \d+$", "", short(name))


def average(run: RunView) -> float | None:
    """Accuracy over all test images."""
    return number(run.metrics.get("average"))


def worst_group(run: RunView) -> float | None:
    """Accuracy over the test images of the group in which the run does worst."""
    return number(run.metrics.get("worst_group"))


def card(run: RunView, row: int, slot: str, bars: Bars) -> dict[str, object]:
    """Worst group, average and pairs of one run, in large figures; `row` is its row in `bars`."""
    worst = worst_block(bars, row)
    return {
        "name": run.name,
        "folder": run.folder,
        "series": slot,
        "average": percent(average(run)),
        "changed": percent(run.disagreement) if run.pairs else None,
        "changed_span": span(share_interval(run.disagreement, run.pairs.total)) if run.pairs else "",
        "worst": percent(worst_group(run)),
        "worst_name": None if worst is None else bars.blocks[worst],
        "worst_span": "" if worst is None else span(bars.intervals[row][worst]),
        "fill": f"{100 * min(1.0, max(0.0, worst_group(run) or 0.0)):.1f}",
    }


def table(runs: Sequence[RunView], bars: Bars, *, group: str = "group") -> Iterator[dict[str, object]]:
    """Rows of the table of results: what is measured, on how many, then a value and its interval a run.

    Args:
        runs: a column each.
        bars: their accuracy by group.
        group: what a group is called: `group`, or `class` where there are no other groups.
    """
    many = range(len(runs))
    counts = [count for count in bars.counts if count is not None]
    total = sum(counts) if counts else None
    worst = [worst_block(bars, r) for r in many]
    plural = {"class": "classes"}.get(group, f"{group}s")

    def row(name: str, kind: str, cells: list[Cell], count: int | None = None) -> dict[str, object]:
        return {"name": name, "count": "" if count is None else f"{count:,}", "kind": kind, "cells": cells}

    def metric(key: str) -> list[float | None]:
        return [number(run.metrics.get(key)) for run in runs]

    yield row(
        f"Worst {group}",
        "main",
        [
            _cell(value, None if w is None else bars.intervals[r][w])
            for r, (value, w) in enumerate(zip(metric("worst_group"), worst, strict=True))
        ],
    )
    yield row("Average", "main", [_cell(value, share_interval(value, total)) for value in metric("average")], total)
    if any(value is not None for value in metric("average_reweighted")):
        yield row("Average, reweighted to training", "main", [_cell(value) for value in metric("average_reweighted")])
    yield row(f"Mean of {plural}", "main", [_cell(value) for value in metric("group_mean")])
    yield row(f"Gap, best to worst {group}", "main", [_gap(bars, r) for r in many])
    for b, name in enumerate(bars.blocks):
        yield row(name, "group", [_cell(bars.shares[r][b], bars.intervals[r][b]) for r in many], bars.counts[b])
    for key, name in (("auroc", "AUROC"), ("calibration_error", "Calibration error")):
        if any(value is not None for value in metric(key)):
            yield row(name, "main", [_cell(value) for value in metric(key)])
    totals = [run.pairs.total if run.pairs else None for run in runs]
    pairs = [_cell(run.disagreement, share_interval(run.disagreement, n)) for run, n in zip(runs, totals, strict=True)]
    yield row("Pair disagreement", "main", pairs, totals[0] if len(set(totals)) == 1 else None)
    yield row("Training time", "main", [(duration(seconds(run)), "") for run in runs])


def _cell(value: float | None, interval: Interval | None = None) -> Cell:
    return percent(value), span(interval)


def _gap(bars: Bars, row: int) -> Cell:
    """How far the best group is from the worst, in points."""
    known = sorted((share, b) for b, share in enumerate(bars.shares[row]) if share is not None)
    if len(known) < 2:
        return "–", ""
    (low, worst), (high, best) = known[0], known[-1]
    m, n = bars.counts[worst], bars.counts[best]
    interval = difference((round(high * n), n), (round(low * m), m)) if m and n else None
    return f"{100 * (high - low):.1f}\N{NO-BREAK SPACE}points", span(interval)


def worst_block(bars: Bars, row: int) -> int | None:
    """The block in which a run does worst."""
    return lowest((share, count or 0) for share, count in zip(bars.shares[row], bars.counts, strict=True))
