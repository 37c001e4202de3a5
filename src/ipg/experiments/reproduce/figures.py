"""The figures of a reproduction, one for each data set that has rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ipg.experiments.arms import broke_off
from ipg.experiments.reproduce.dynamics import CURVES
from ipg.experiments.reproduce.plan import Reproduction, title_of
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.reproduce.table import METRICS
from ipg.report.figures.bands import bands_data, draw_bands
from ipg.report.figures.boxes import boxes_data, draw_boxes
from ipg.report.figures.grid import GridCell, draw_grid, grid_data

__all__ = ["dynamics_figures", "figures_of"]

AXES = {"pairs": "pairs", "alpha": "α", "tau": "τ", "every": "k", "corrupted": "corrupted"}
BROKEN = ("other-2", "other-3", "other-4", "other-5", "other-6")
"""Colours of seeds that broke off."""
PROTOCOLS = {"paper": "the paper's settings", "ours": "our settings"}


def figures_of(reproduction: Reproduction, measured: Sequence[Measured]) -> dict[str, str]:
    """SVG by the stem of its file; none where nothing was measured."""
    if reproduction.figure is None:
        return {}
    draw = {"boxes": _boxes, "grid": _grid}[reproduction.figure]
    found = {}
    for dataset in dict.fromkeys(entry.cell.dataset for entry in measured):
        own = [
            entry
            for entry in measured
            if entry.cell.dataset == dataset and set(reproduction.axes) <= set(entry.cell.varied)
        ]
        if own and (svg := draw(reproduction, dataset, own)):
            found[f"{reproduction.name}-{dataset}"] = svg
    return found


def _metric(reproduction: Reproduction, cells: Sequence[Measured]) -> str:
    """The metric that the paper gives for these cells, else the first of the reproduction."""
    quoted = [metric for metric in reproduction.metrics if any(metric in entry.cell.figures for entry in cells)]
    return quoted[0] if quoted else reproduction.metrics[0]


def _detail(reproduction: Reproduction, dataset: str, metric: str, cells: Sequence[Measured]) -> str:
    """`ColoredMNIST, accuracy`; of a small version, what it is."""
    if not reproduction.quick:
        return f"{title_of(dataset)}, {METRICS[metric]}"
    data = title_of(cells[0].cell.trials[0].dataset)
    return f"Quick version on {data}, not {title_of(dataset)}; {METRICS[metric]}"


def _boxes(reproduction: Reproduction, dataset: str, cells: Sequence[Measured]) -> str:
    metric, axis = _metric(reproduction, cells), reproduction.axes[0]
    categories = sorted({entry.cell.varied[axis] for entry in cells})
    by_protocol: dict[str, dict[Any, Measured]] = {}
    for entry in cells:
        by_protocol.setdefault(entry.cell.protocol, {})[entry.cell.varied[axis]] = entry
    values = {
        PROTOCOLS.get(name, name): [known[c].values(metric) if c in known else [] for c in categories]
        for name, known in by_protocol.items()
    }
    quoted = {entry.cell.varied[axis]: entry.cell.figures[metric] for entry in cells if metric in entry.cell.figures}
    published = [
        (quoted[c].mean / 100, None if (s := quoted[c].spread) is None else s / 100) if c in quoted else None
        for c in categories
    ]
    detail = _detail(reproduction, dataset, metric, cells)
    names, shown = [f"{c:,}" for c in categories], [] if reproduction.quick else published
    return draw_boxes(boxes_data(reproduction.title, AXES[axis], names, values, shown, detail=detail))


def _grid(reproduction: Reproduction, dataset: str, cells: Sequence[Measured]) -> str:
    metric, (down, across) = _metric(reproduction, cells), reproduction.axes
    grid: dict[tuple[Any, Any], GridCell] = {}
    for entry in cells:
        figure, ours = entry.cell.figures.get(metric), entry.spread(metric)
        published = None if figure is None or reproduction.quick else figure.mean / 100
        place = (entry.cell.varied[down], entry.cell.varied[across])
        grid[place] = (
            GridCell(None, published=published)
            if ours is None
            else GridCell(ours.mean, ours.deviation, ours.count, published)
        )
    values = tuple(sorted({place[side] for place in grid}) for side in (0, 1))
    sparse = {down, across} == {"every", "alpha"}
    return draw_grid(
        grid_data(
            reproduction.title,
            (AXES[down], AXES[across]),
            (values[0], values[1]),
            grid,
            beyond=(lambda one, other: one * other >= 1) if sparse else None,
            boundary="k α = 1: below it the corrective loss is guaranteed to fall" if sparse else None,
            detail=_detail(reproduction, dataset, metric, cells),
        )
    )


def dynamics_figures(reproduction: Reproduction, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Task loss, corrective loss and disagreement by epoch, mean and spread over the seeds.

    Seeds that broke off have no part in the mean, which would change with their end: each has a line of its own.
    """
    whole = [row for row in rows if not broke_off(row)]
    broken = sorted(
        (row for row in rows if broke_off(row) and row["curves"][CURVES[0]]),
        key=lambda row: len(row["curves"][CURVES[0]]),
        reverse=True,
    )
    if not whole and not broken:
        return {}
    titles = {"task_loss": "Task loss", "corrective_loss": "Corrective loss", "disagreement": "Disagreeing pairs"}
    data = title_of(rows[0]["dataset"])
    detail = f"Quick version on {data}, {len(rows)} seeds" if reproduction.quick else f"{data}, {len(rows)} seeds"
    if lost := len(rows) - len(whole):
        detail += f", {lost} of them broken off"
    found = {}
    for slot, name in zip(("after", "before", "other-1"), CURVES, strict=True):
        values = {"mean ± standard deviation": [row["curves"][name] for row in whole]} if whole else {}
        for row in broken:
            curve = row["curves"][name]
            values[f"seed {row['seed']}, broken off after {len(curve)} epochs"] = [curve]
        least = min(min(curve) for curves in values.values() for curve in curves)
        line = (least, f"least of all seeds, {least:.3f}") if name == "task_loss" else None
        title = f"{titles[name]} in full batch"
        slots = [*([slot] if whole else []), *itertools.islice(itertools.cycle(BROKEN), len(broken))]
        panel = bands_data(title, values, line=line, slots=slots, detail=detail)
        found[f"{reproduction.name}-{name}"] = draw_bands(panel, name=name.replace("_", "-"))
    return found
