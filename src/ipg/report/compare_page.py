"""A comparison of methods as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ipg.evaluation.confidence import BINS
from ipg.evaluation.spread import Spread
from ipg.experiments.tables.text import origin, seeds_of
from ipg.report import figures
from ipg.report.caveats import caveats
from ipg.report.compared import Comparison, MethodRows
from ipg.report.html import inline, rendered, write_page
from ipg.report.settings import duration, value_text
from ipg.report.views import percent, span

__all__ = ["accuracy_dots", "difference_dots", "render_comparison", "write_comparison"]

MOST_CARDS = 4
"""With more methods the large figures are left to the table."""
COLUMNS = {
    "worst_group": "Worst {group}",
    "average": "Average",
    "average_reweighted": "Average, reweighted",
    "group_mean": "Mean of {groups}",
    "pair_disagreement": "Pairs that disagree",
    "auroc": "AUROC",
    "calibration_error": "Calibration error",
}
DIFFERENCES = ("worst_group", "average")


def write_comparison(path: Path, comparison: Comparison) -> Path:
    """Write the page, whole or not at all."""
    return write_page(path, render_comparison(comparison))


def render_comparison(comparison: Comparison) -> str:
    """The page as a string; equal data gives equal pages."""
    measured = [method for method in comparison.methods if method.rows]
    words = _words(comparison)
    return rendered(
        "compare.html",
        comparison=comparison,
        words=words,
        cards=[_card(method, words["group"]) for method in measured] if len(measured) <= MOST_CARDS else [],
        columns=[text.format(**words) for metric, text in COLUMNS.items()],
        table=[_line(comparison, method) for method in comparison.methods],
        differences=list(_differences(comparison)),
        accuracy=inline(figures.draw_dots(accuracy_dots(comparison), name="groups")),
        against=inline(figures.draw_dots(difference_dots(comparison), name="differences")),
        caveats=caveats(comparison),
        failures=[(m.name, seed, text) for m in comparison.methods for seed, text in sorted(m.failures.items())],
        origin=origin(comparison.rows).replace("`", "") if comparison.rows else "",
        settings=list(_settings(comparison)),
        own=[(method.name, _options(method)) for method in comparison.methods if method.options],
        bins=BINS,
    )


def _settings(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Settings that methods share; those of pairs that would be made, where pairs are read, are left out."""
    made = ("pair_builder", "held_out_pairs") if isinstance(comparison.settings.get("pairs"), str) else ()
    for name, value in sorted(comparison.settings.items()):
        if value is not None and name not in made:
            yield name, value_text(value)


def _options(method: MethodRows) -> str:
    """The options of a method's own, those without a value left out."""
    told = [f"{name} {value_text(value)}" for name, value in method.options.items() if value != ""]
    return ", ".join(told)


def accuracy_dots(comparison: Comparison) -> figures.Dots:
    """Accuracy by group, a dot a seed; a group is a class where there are no others."""
    facts = comparison.facts
    blocks = tuple(
        (
            name if facts.grouped else name.removesuffix(f", {facts.attributes[0]}"),
            f"n = {count:,}",
            tuple(_strip(method, f"groups/{name}") for method in comparison.methods if method.rows),
        )
        for name, count in facts.tested.items()
        if count
    )
    return figures.Dots("Accuracy by group, a dot a seed", blocks if any(strips for *_, strips in blocks) else ())


def difference_dots(comparison: Comparison) -> figures.Dots:
    """Differences to the reference, a dot a seed, on a scale that is the same on both sides where both occur."""
    words = _words(comparison)
    blocks = []
    for metric in DIFFERENCES:
        strips = []
        for method in comparison.others:
            found = comparison.against(method, metric)
            if found is not None:
                strips.append(figures.Strip(method.name, method.series, found.values, found.difference))
        if strips:
            blocks.append((COLUMNS[metric].format(**words), "points", tuple(strips)))
    values = [value for *_, strips in blocks for strip in strips for value in strip.values]
    low, high = _reach(values)
    title = f"Differences to {comparison.reference.name}, a dot a seed"
    return figures.Dots(title, tuple(blocks), low=low, high=high, signed=True)


def _reach(values: Sequence[float]) -> tuple[float, float]:
    """From where to where a scale goes on which all `values` and zero have room: whole steps of 1, 5 or 10 points."""
    low, high = min([0.0, *values]), max([0.0, *values])
    step = next(step for step in (0.01, 0.05, 0.1) if high - low <= 10 * step or step == 0.1)
    ends = math.floor(low / step - 1e-9) * step, math.ceil(high / step + 1e-9) * step
    return min(ends[0], -step), max(ends[1], step)


def _words(comparison: Comparison) -> dict[str, str]:
    if comparison.facts.grouped:
        return {"group": "group", "groups": "groups"}
    return {"group": "class", "groups": "classes"}


def _strip(method: MethodRows, metric: str) -> figures.Strip:
    return figures.Strip(method.name, method.series, tuple(method.values(metric).values()), method.spread(metric))


def _card(method: MethodRows, group: str) -> dict[str, str]:
    worst, average = method.spread("worst_group"), method.spread("average")
    return {
        "name": method.name,
        "series": method.series,
        "worst": percent(worst.mean if worst else None),
        "group": group,
        "fill": f"{100 * (worst.mean if worst else 0.0):.1f}",
        "average": percent(average.mean if average else None),
        "mark": method.mark,
    }


def _line(comparison: Comparison, method: MethodRows) -> dict[str, object]:
    """A method in the table: its metrics, its time and its seeds."""
    times, seconds = comparison.times(method), method.spread("seconds")
    return {
        "name": method.name,
        "series": method.series,
        "mark": method.mark,
        "cells": [_cell(method.spread(metric)) for metric in COLUMNS],
        "times": "–" if times is None else f"{times.mean:.2f}",
        "times_span": "" if times is None or times.interval is None else _plain_span(times),
        "seconds": duration(seconds.mean if seconds else None),
        "seeds": seeds_of(len(method.rows), len(comparison.seeds)),
    }


def _cell(found: Spread | None) -> tuple[str, str]:
    if found is None:
        return "–", ""
    return percent(found.mean), span(found.interval)


def _plain_span(found: Spread) -> str:
    return "" if found.interval is None else f"{found.interval.low:.2f}\N{EN DASH}{found.interval.high:.2f}"


def _differences(comparison: Comparison) -> Iterator[dict[str, str]]:
    """The table of differences: how far, between what, and how often chance does as much."""
    for metric in DIFFERENCES:
        for method in comparison.others:
            found = comparison.against(method, metric)
            if found is None:
                continue
            spread = found.difference
            yield {
                "metric": COLUMNS[metric].format(**_words(comparison)),
                "name": method.name,
                "series": method.series,
                "mean": figures.points(spread.mean),
                "span": span(spread.interval),
                "p": "–" if found.p is None else f"{found.p:.2g}",
                "seeds": str(spread.count),
            }
