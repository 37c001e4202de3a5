"""The report as one HTML page: everything inline, nothing fetched, light and dark, on a screen, a phone and paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from torch import Tensor

from ipg.files import write_text
from ipg.report import figures
from ipg.report.figures import RunView, number, percent

__all__ = ["Flip", "PageData", "RunView", "render", "write"]

SELECTIONS = {
    "last": "the last epoch",
    "training_environments": "best validation accuracy over the training environments",
    "worst_group": "best worst-group validation accuracy",
    "pairs": "best validation accuracy times agreement on held-out pairs",
}
"""Rules by which a run keeps one of its epochs (`ipg.evaluation.selection`), in words; none reads the test split."""

GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖", "*": "★"}
"""Markers of the line plots as letters, for the legend."""


@dataclass(frozen=True)
class Flip:
    """An image in two versions that differ in the shortcut alone, and what every run says of both."""

    first: Tensor  # (C, H, W), uint8
    second: Tensor  # (C, H, W), uint8
    label: str
    predictions: Mapping[str, tuple[str, str]]
    """Name of the run to the class it gives the first and the second version."""


@dataclass(frozen=True)
class PageData:
    """All that stands on the page. Whatever is empty or missing is left out."""

    title: str
    """Where the accuracies were measured, as the headline begins: `On clothes whose colour changed`."""
    shortcut: str
    """What the shortcut is and where it fails, in a sentence or two."""
    runs: Sequence[RunView]
    pairs: Sequence[tuple[Tensor, Tensor, str]]
    """A sample of the pairs for the gallery: first, second (C, H, W, uint8), name of the label."""
    pair_count: int
    """How many pairs guided the training."""
    train_count: int
    """How many images it had."""
    flips: Sequence[Flip]
    command: str
    environment: Mapping[str, str]
    """Versions, hardware, commit, date."""


def write(path: Path, data: PageData) -> Path:
    """Write the page to `path` in one go: a reader finds the old page or the new one, never half of it."""
    return write_text(path, render(data).encode("utf-8", "replace").decode("utf-8"))  # lone surrogates become `?`


def render(data: PageData) -> str:
    """The page as a string; equal data gives equal pages."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(resources.files("ipg.report").joinpath("template.html").read_text("utf-8"))
    slots = figures.series(data.runs)
    bars = figures.group_bars_data(data.runs)
    panels = figures.curves_data(data.runs)
    compared = _compared(data.runs)
    shared, differing = _settings(data.runs)
    two = [data.runs[i] for i in compared]
    return template.render(
        data=data,
        headline=[_headline(data.runs[i], slots[i]) for i in compared if _average(data.runs[i]) is not None],
        cards=[_card(data.runs[i], slots[i]) for i in compared],
        legend=[
            {"name": run.name, "series": slot, "glyph": GLYPHS[figures.MARKERS[slot]]}
            for run, slot in zip(data.runs, slots, strict=True)
        ],
        pair_share=percent(data.pair_count / data.train_count) if data.train_count else None,
        tiles=figures.pair_grid_data(data.pairs).tiles,
        bars=[_inline(svg) for part in _columns(bars) if (svg := figures.draw_group_bars(part, legend=False))],
        table=list(_table(data.runs, bars)),
        curves=[_inline(figures.draw_curves(panel, legend=False)) for panel in panels],
        flips=[_flip(flip, data.runs) for flip in data.flips],
        flip_counts=_flip_counts(data.flips, two),
        made=[_made(run) for run in data.runs],
        total_seconds=_total(data.runs),
        blind=bool(data.runs) and all(run.result.get("selection") in SELECTIONS for run in data.runs),
        shared=shared,
        differing=differing,
    )


def _inline(svg: str) -> Markup:
    """An SVG of ours as part of a page, where it needs no namespace."""
    return Markup(svg.replace(f' xmlns="{figures.SVG}"', "", 1))  # escaped by figures.py


def _compared(runs: Sequence[RunView]) -> list[int]:
    """Which runs the headline names: the first `before` and the first `after`; without either, the first run."""
    roles = [run.role for run in runs]
    return [roles.index(role) for role in ("before", "after") if role in roles] or list(range(len(runs)))[:1]


def _headline(run: RunView, slot: str) -> dict[str, str]:
    """A part of `On clothes whose colour changed: plain training 11 %, guided 98 %`."""
    return {"name": _short(run.name), "series": slot, "average": percent(_average(run), 0)}


def _short(name: str) -> str:
    """`Plain training (ERM)` within a sentence: `plain training`. Names and abbreviations keep their capitals."""
    name = name.partition(" (")[0]
    return name[:1].lower() + name[1:] if name[1:] == name[1:].lower() else name


def _card(run: RunView, slot: str) -> dict[str, object]:
    """Average and worst group of one run, in large figures."""
    average, worst = _average(run), number(run.metrics.get("worst_group"))
    groups = run.metrics.get("groups") or {}
    known = {name: value for name, row in groups.items() if (value := number((row or {}).get("accuracy"))) is not None}
    return {
        "name": run.name,
        "series": slot,
        "average": percent(average),
        "worst": percent(worst),
        "worst_name": min(known, key=lambda name: known[name]) if known else None,
        "fill": f"{100 * min(1.0, max(0.0, average or 0.0)):.1f}",
    }


def _columns(bars: figures.GroupBars) -> list[figures.GroupBars]:
    """One column of bars, with room for the table beside it; two where there are many groups or runs."""
    groups = len(bars.groups)
    if groups < 2 or (groups <= 8 and len(bars.runs) <= 3):
        return [bars]
    return [bars.take(range((groups + 1) // 2)), bars.take(range((groups + 1) // 2, groups))]


def _table(runs: Sequence[RunView], bars: figures.GroupBars) -> Iterator[dict[str, object]]:
    """Rows of the table of results: what is measured, then a value a run."""
    counts = [count for count in bars.counts if count is not None]
    total = f"{sum(counts):,}" if counts else ""
    for key, name in (("average", "Average"), ("group_mean", "Mean of groups"), ("worst_group", "Worst group")):
        cells = [percent(number(run.metrics.get(key))) for run in runs]
        yield {"name": name, "count": total if key == "average" else "", "kind": "main", "cells": cells}
    for g, group in enumerate(bars.groups):
        count = "" if bars.counts[g] is None else f"{bars.counts[g]:,}"
        yield {"name": group, "count": count, "kind": "group", "cells": [percent(row[g]) for row in bars.accuracy]}
    disagreement = [percent(number(run.metrics.get("pair_disagreement"))) for run in runs]
    yield {"name": "Pair disagreement", "count": "", "kind": "main", "cells": disagreement}
    yield {"name": "Training time", "count": "", "kind": "main", "cells": [_time(_seconds(run)) for run in runs]}


def _flip(flip: Flip, runs: Sequence[RunView]) -> dict[str, object]:
    """One image of the last gallery: its two versions, and a line a run with two answers."""
    order = {run.name: i for i, run in enumerate(runs)}
    slots = dict(zip(order, figures.series(runs), strict=True)) if len(order) == len(runs) else {}
    names = sorted(flip.predictions, key=lambda name: order.get(name, len(order)))
    return {
        "tile": figures.pair_grid_data([(flip.first, flip.second, flip.label)]).tiles[0],
        "answers": [
            {
                "run": _short(name),
                "series": slots.get(name, "other-5"),
                "said": [{"text": said, "right": said == flip.label} for said in flip.predictions[name]],
            }
            for name in names
        ],
    }


def _flip_counts(flips: Sequence[Flip], runs: Sequence[RunView]) -> list[dict[str, object]]:
    """On how many of the images shown each run changes its answer."""
    counts: list[dict[str, object]] = []
    for run in runs:
        answers = [flip.predictions[run.name] for flip in flips if run.name in flip.predictions]
        if answers:
            counts.append({"name": _short(run.name), "changed": sum(a != b for a, b in answers), "of": len(answers)})
    return counts


def _made(run: RunView) -> dict[str, object]:
    """How one run came about."""
    rule = run.result.get("selection")
    epoch = number(run.result.get("selected_epoch"))
    return {
        "name": run.name,
        "method": run.method,
        "seed": _value(run.config.get("seed")),
        "selection": SELECTIONS.get(str(rule), str(rule)) if rule is not None else "–",
        "epoch": "–" if epoch is None else f"{int(epoch)} of {len(run.epochs)}" if run.epochs else f"{int(epoch)}",
        "seconds": _time(_seconds(run)),
    }


def _settings(runs: Sequence[RunView]) -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
    """The settings on which all runs agree, and those on which they differ with a value a run."""
    flat = [dict(_flatten(run.config)) for run in runs]
    shared, differing = [], []
    for key in dict.fromkeys(key for config in flat for key in config):
        values = [_value(config[key]) if key in config else "" for config in flat]
        if len(set(values)) == 1:
            shared.append((key, values[0]))
        else:
            differing.append((key, values))
    return shared, differing


def _flatten(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value(value: Any) -> str:
    """A setting as its user would type it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(item) for item in value)
    return str(value)


def _average(run: RunView) -> float | None:
    return number(run.metrics.get("average"))


def _seconds(run: RunView) -> float | None:
    return number(run.result.get("seconds"))


def _total(runs: Sequence[RunView]) -> str | None:
    """The time of all runs together; None unless every run has one."""
    seconds = [_seconds(run) for run in runs]
    known = [value for value in seconds if value is not None]
    return _time(sum(known)) if known and len(known) == len(seconds) else None


def _time(seconds: float | None) -> str:
    """A duration: `6.1 s`, `2 min 5 s`, `3 h 20 min`."""
    space = "\N{NO-BREAK SPACE}"
    if seconds is None:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f}{space}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{space}min {whole % 60}{space}s"
    return f"{whole // 3600}{space}h {whole % 3600 // 60}{space}min"
