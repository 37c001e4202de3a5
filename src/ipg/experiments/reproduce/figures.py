"""The figures of a reproduction: one for each data set, three of training in full batch, one a setting of a search."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipg.experiments.arms import broke_off
from ipg.experiments.reproduce.dynamics import CURVES
from ipg.experiments.reproduce.plan import Reproduction, title_of
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.reproduce.search import VARIED, in_short, search_rows
from ipg.experiments.reproduce.table import METRICS
from ipg.experiments.search.result import best_row
from ipg.experiments.search.space import COMMON
from ipg.methods import method_class
from ipg.methods.space import LogUniform
from ipg.report.figures.bands import Band, bands_data, draw_bands
from ipg.report.figures.boxes import Boxes, boxes_data, draw_boxes
from ipg.report.figures.costs import Cost, Costs, draw_costs
from ipg.report.figures.grid import Grid, GridCell, draw_grid, grid_data
from ipg.report.figures.search import Worth, draw_worth
from ipg.words import listed, number_of

__all__ = ["Drawing", "drawings_of", "figures_of", "search_drawings"]

AXES = {"pairs": "pairs", "alpha": "α", "tau": "τ", "every": "k", "corrupted": "corrupted"}
BROKEN = ("other-2", "other-3", "other-4", "other-5", "other-6")
"""Colours of seeds that broke off."""
FEW = 10
"""Trials of a search below which there is nothing to be seen in a figure."""
PROTOCOLS = {"paper": "our runs, the paper's settings", "ours": "our runs, our settings"}


@dataclass(frozen=True)
class Drawing:
    """A figure, and in words what is seen."""

    svg: str
    alt: str


def figures_of(reproduction: Reproduction, measured: Sequence[Measured]) -> dict[str, str]:
    """SVG by the stem of its file; none where nothing was measured."""
    return {stem: drawing.svg for stem, drawing in drawings_of(reproduction, measured).items()}


def drawings_of(reproduction: Reproduction, measured: Sequence[Measured]) -> dict[str, Drawing]:
    """The figures by the stems of their files, `NAME-DATASET` or `NAME-CURVE`; none where nothing was measured."""
    if reproduction.kind == "dynamics":
        return _curves(reproduction, [row for entry in measured for row in entry.rows])
    if reproduction.figure is None:
        return {}
    draw = {"boxes": _boxes, "costs": _costs, "grid": _grid}[reproduction.figure]
    found = {}
    for dataset in dict.fromkeys(entry.cell.dataset for entry in measured):
        own = [
            entry
            for entry in measured
            if entry.cell.dataset == dataset and set(reproduction.axes) <= set(entry.cell.varied)
        ]
        if own and (drawing := draw(reproduction, dataset, own)).svg:
            found[f"{reproduction.name}-{dataset}"] = drawing
    return found


def _metric(reproduction: Reproduction, cells: Sequence[Measured]) -> str:
    """The metric that the paper gives for these cells, else the one that keeps their epochs, else the first."""
    quoted = [metric for metric in reproduction.metrics if any(metric in entry.cell.figures for entry in cells)]
    kept = {trial.config.selection for entry in cells for trial in entry.cell.trials}
    keeping = [metric for metric in reproduction.metrics if kept == {metric}]
    return [*quoted, *keeping, *reproduction.metrics][0]


def _detail(reproduction: Reproduction, dataset: str, metric: str, cells: Sequence[Measured]) -> str:
    """`ColoredMNIST, accuracy`; of a small version, what it is."""
    if not reproduction.quick:
        return f"{title_of(dataset)}, {METRICS[metric]}"
    data = title_of(cells[0].cell.trials[0].dataset)
    return f"Quick version on {data}, not {title_of(dataset)}; {METRICS[metric]}"


def _boxes(reproduction: Reproduction, dataset: str, cells: Sequence[Measured]) -> Drawing:
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
    detail = f"{_detail(reproduction, dataset, metric, cells)}; a dot is a seed"
    names, shown = [f"{c:,}" for c in categories], [] if reproduction.quick else published
    data = boxes_data(reproduction.title, AXES[axis], names, values, shown, detail=detail)
    return Drawing(draw_boxes(data), f"Box plots of {METRICS[metric]} on {title_of(dataset)}: {_seen_boxes(data)}")


def _seen_boxes(data: Boxes) -> str:
    seen = []
    for series in data.series:
        medians = [
            f"{100 * box.median:.1f} % with {category}"
            for category, box in zip(data.categories, series.boxes, strict=True)
            if box is not None
        ]
        seen.append(f"{series.name}, median {listed(medians)} {data.across}")
    return "; ".join([*seen, *(["the paper's means beside them as diamonds"] if any(data.published) else [])])


def _costs(reproduction: Reproduction, dataset: str, cells: Sequence[Measured]) -> Drawing:
    """The worst group over what it costs; settings whose time is not known are left out."""
    found = []
    for entry in cells:
        worth, time = entry.spread("worst_group"), entry.spread("cost")
        if worth is not None and time is not None:
            found.append(Cost(entry.cell.name, worth, time))
    detail = _detail(reproduction, dataset, "worst_group", cells)
    counts = {cost.worth.count for cost in found}
    told = f" in %, {_over_seeds(counts)}" if counts else ""
    data = Costs(reproduction.title, tuple(found), detail + told)
    seen = [f"{cost.name} {100 * cost.worth.mean:.1f} % at {cost.time.mean:.2f} times" for cost in found]
    alt = f"{METRICS['worst_group'].capitalize()} on {title_of(dataset)} over time beside that of plain training: "
    return Drawing(draw_costs(data), alt + "; ".join(seen))


def _grid(reproduction: Reproduction, dataset: str, cells: Sequence[Measured]) -> Drawing:
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
    counts = {cell.count for cell in grid.values() if cell.count}
    told = f" in %, {_over_seeds(counts)}" if counts else ""
    data = grid_data(
        reproduction.title,
        (AXES[down], AXES[across]),
        (values[0], values[1]),
        grid,
        beyond=(lambda one, other: one * other >= 1) if sparse else None,
        boundary="k α = 1: up and left of it the corrective loss is guaranteed to fall" if sparse else None,
        detail=_detail(reproduction, dataset, metric, cells) + told,
    )
    return Drawing(draw_grid(data), f"Grid of {METRICS[metric]} on {title_of(dataset)} {_seen_grid(data)}")


def _over_seeds(counts: set[int]) -> str:
    """`mean ± standard deviation of 2 to 3 seeds`."""
    least, most = min(counts), max(counts)
    if most == 1:
        return "one seed"
    return f"mean ± standard deviation of {most if least == most else f'{least} to {most}'} seeds"


def _seen_grid(data: Grid) -> str:
    places = [
        (entry.mean, f"{100 * entry.mean:.1f} % at {data.down} {row}, {data.across} {column}")
        for row, entries in zip(data.rows, data.cells, strict=True)
        for column, entry in zip(data.columns, entries, strict=True)
        if entry.mean is not None
    ]
    asked = len(data.rows) * len(data.columns)
    seen = [f"by {data.down} and {data.across}, {len(places)} of {asked} cells measured"]
    if len(places) > 1:
        seen[0] += f", from {min(places)[1]} to {max(places)[1]}"
    elif places:
        seen[0] += f", {places[0][1]}"
    if any(entry.published is not None for entries in data.cells for entry in entries):
        seen.append("the paper's mean beneath ours")
    if data.boundary:
        seen.append("a line at k α = 1")
    return "; ".join(seen)


def _curves(reproduction: Reproduction, rows: Sequence[Mapping[str, Any]]) -> dict[str, Drawing]:
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
    detail = f"{f'Quick version on {data}' if reproduction.quick else data}, {number_of(len(rows), 'seed')}"
    if lost := len(rows) - len(whole):
        detail += f", {lost} of them broken off"
    found = {}
    for slot, name in zip(("after", "before", "other-1"), CURVES, strict=True):
        label = "mean ± standard deviation" if len(whole) > 1 else "by epoch"
        values = {label: [row["curves"][name] for row in whole]} if whole else {}
        for row in broken:
            curve = row["curves"][name]
            values[f"seed {row['seed']}, broken off after {len(curve)} epochs"] = [curve]
        least = min(min(curve) for curves in values.values() for curve in curves)
        line = (least, f"least of all seeds, {least:.3f}") if name == "task_loss" else None
        title = f"{titles[name]} in full batch"
        slots = [*([slot] if whole else []), *itertools.islice(itertools.cycle(BROKEN), len(broken))]
        panel = bands_data(title, values, line=line, slots=slots, detail=detail)
        svg = draw_bands(panel, name=name.replace("_", "-"))
        found[f"{reproduction.name}-{name}"] = Drawing(svg, f"{title}, {detail}: {_seen_curve(panel.bands[0])}")
    return found


def _seen_curve(band: Band) -> str:
    """Where a curve begins, is highest and ends."""
    top = max(range(len(band.mean)), key=band.mean.__getitem__)
    return (
        f"{band.mean[0]:.3g} at first, at most {band.mean[top]:.3g} in epoch {band.steps[top]:,}, "
        f"{band.mean[-1]:.3g} after {band.steps[-1]:,} epochs"
    )


def search_drawings(reproduction: Reproduction, folder: Path) -> dict[str, Drawing]:
    """For each data set, and each setting that was searched for, what trials were worth over it."""
    ranges = {**method_class("ipg").space, **{name: COMMON[name] for name in VARIED}}
    found = {}
    for dataset, trials in search_rows(reproduction, folder).items():
        rows = [row for row in trials if row["value"] is not None]
        if len(rows) < FEW:
            continue
        values = tuple(float(row["value"]) for row in rows)
        best = best_row(rows)
        for name, range_ in ranges.items():
            places = tuple(float(row["config"][name]) for row in rows)
            words, logarithmic = name.replace("_", " "), isinstance(range_, LogUniform)
            title = f"{words} on {title_of(dataset)}"
            data = Worth(f"{dataset}-{name}", title, places, values, best, logarithmic=logarithmic)
            alt = (
                f"Score of {len(rows)} trials on {title_of(dataset)} over {words}: from {100 * min(values):.1f} to "
                f"{100 * max(values):.1f} %" + ("" if best is None else f", the best at {in_short(places[best])}")
            )
            found[f"{reproduction.name}-{dataset}-{name}"] = Drawing(draw_worth(data), alt)
    return found
