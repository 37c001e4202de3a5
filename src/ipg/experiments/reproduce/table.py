"""The table of a reproduction: ours beside the paper's, the difference, how many seeds, where and from what source."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipg.experiments.arms import Figure, Spread, broke_off
from ipg.experiments.reproduce.plan import Reproduction, shared, title_of
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.tables.formats import latex
from ipg.experiments.tables.study import METRICS as SHARES
from ipg.experiments.tables.text import collapse_text, commit_text, markdown, origin
from ipg.files import write_json, write_text

__all__ = ["KEPT_TABLE", "METRICS", "Table", "quick_note", "table_of", "write_table"]

METRICS = {**SHARES, "cost": "time over ERM", "task_loss": "least task loss"}
"""Metrics as the tables call them."""
FACTORS = ("cost", "task_loss")
"""Metrics that are no shares."""
RULES = {
    "training_environments": "on ColoredMNIST by the paper's rule, the best in the training environments, where the "
    "use of colour pays",
    "worst_group": "of photographs by the worst group of the validation images",
}
"""How an epoch is kept, in words."""
NONE = "–"


KEPT_TABLE = "table.md"
"""Among the rows of a reproduction that has none: its table as it was made last."""


@dataclass(frozen=True)
class Table:
    """Cells of text, and sentences beneath."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    text: int = 2
    """So many columns lean left."""
    records: tuple[Mapping[str, Any], ...] = ()
    """The same with every number apart and in full, where there is more to say than the cells do."""

    def markdown(self) -> str:
        """The table and its notes."""
        return "\n\n".join([markdown(self.head, self.lines, text=self.text), *self.notes])

    def csv(self) -> str:
        """The records, or the cells where there are none; nothing for what is not known."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if self.records:
            writer.writerows([list(self.records[0]), *(record.values() for record in self.records)])
        else:
            writer.writerows([self.head, *self.lines])
        return out.getvalue()


def table_of(reproduction: Reproduction, measured: Sequence[Measured]) -> Table:
    """A line a cell of the reproduction."""
    metrics = reproduction.metrics
    if reproduction.quick:  # what stands in the paper is of other data
        measured = [replace(found, cell=replace(found.cell, figures={})) for found in measured if found.cell.trials]
    quoted = [metric for metric in metrics if any(_figure(found, metric) for found in measured)]
    last = [metric for metric in metrics if metric not in FACTORS]
    if not any(found.cell.keeps for found in measured):
        last = []
    builders = "pairs" in reproduction.axes
    shares = any(figure.share for found in measured for figure in found.cell.figures.values())
    head = ["data", "setting", *(["pairs by"] if builders else []), "protocol"]
    for metric in metrics:
        head += [METRICS[metric], *([f"{METRICS[metric]}, last epoch"] if metric in last else [])]
        head += ["paper", "difference"] if metric in quoted else []
    head += ["share of training data (paper)"] if shares else []
    head += ["seeds", "collapsed", "hardware", "commit", ""]
    lines = []
    for found in measured:
        line = [_data(found), found.cell.name, *([_builder(found)] if builders else []), found.cell.protocol]
        for metric in metrics:
            line += _compared(found, metric, last=metric in last, quoted=metric in quoted)
        if shares:
            known = [figure.share for figure in found.cell.figures.values() if figure.share]
            line.append(f"{known[0]:g} %" if known else NONE)
        lines.append((*line, *_source(found)))
    records = tuple(_record(reproduction, found, metric) for found in measured for metric in metrics)
    notes = tuple(_notes(reproduction, measured, last=bool(last)))
    return Table(tuple(head), tuple(lines), notes, text=4 if builders else 3, records=records)


def _record(reproduction: Reproduction, found: Measured, metric: str) -> dict[str, Any]:
    """One metric of one cell in numbers: shares in percent, factors and losses as they are."""
    ours, figure, last = found.spread(metric), _figure(found, metric), _last(found, metric)
    scale = 1.0 if metric in FACTORS else 100.0
    _, collapsed, hardware, commit, note = _source(found)
    mean = None if ours is None else scale * ours.mean
    return {
        "version": "quick" if reproduction.quick else "whole",
        "data": _data(found),
        "setting": found.cell.name,
        "protocol": found.cell.protocol,
        "metric": metric,
        "mean": mean,
        "deviation": None if ours is None or ours.deviation is None else scale * ours.deviation,
        "last epoch mean": None if last is None else scale * last.mean,
        "last epoch deviation": None if last is None or last.deviation is None else scale * last.deviation,
        "seeds": len(found.seeds),
        "paper mean": figure.mean if figure else None,
        "paper deviation": figure.spread if figure else None,
        "paper trials": figure.count if figure else None,
        "difference": None if mean is None or figure is None else mean - figure.mean,
        "collapsed": collapsed,
        "hardware": hardware,
        "commit": commit.replace("`", ""),
        "note": note,
    }


def _data(found: Measured) -> str:
    """The data set that was trained on, or that the paper's figure is of."""
    trained = {trial.dataset for trial in found.cell.trials}
    return title_of(trained.pop() if len(trained) == 1 else found.cell.dataset)


def _builder(found: Measured) -> str:
    """How the pairs were made, as the rows tell it."""
    return " and ".join(dict.fromkeys(row["config"].get("pair_builder") or NONE for row in found.rows)) or NONE


def _compared(found: Measured, metric: str, *, last: bool, quoted: bool) -> list[str]:
    ours, figure = found.spread(metric), _figure(found, metric)
    return [
        _ours(ours, metric),
        *([_ours(_last(found, metric), metric)] if last else []),
        *([_published(figure), _difference(ours, figure, metric)] if quoted else []),
    ]


def _last(found: Measured, metric: str) -> Spread | None:
    """Ours at the last epoch, where another one may be kept."""
    return found.spread(metric, last=True) if found.cell.keeps else None


def _figure(found: Measured, metric: str) -> Figure | None:
    """The paper's figure for a metric; its mean over images also stands beside our mean of groups."""
    figures = found.cell.figures
    return figures.get(metric) or (figures.get("average") if metric == "group_mean" else None)


def _ours(ours: Spread | None, metric: str) -> str:
    if ours is None:
        return NONE
    scale, digits = (1.0, 2) if metric in FACTORS else (100.0, 1)
    deviation = "" if ours.deviation is None else f" ± {scale * ours.deviation:.{digits}f}"
    return f"{scale * ours.mean:.{digits}f}{deviation}"


def _published(figure: Figure | None) -> str:
    if figure is None:
        return NONE
    return f"{figure.mean:.1f}" + ("" if figure.spread is None else f" ± {figure.spread:.1f}")


def _difference(ours: Spread | None, figure: Figure | None, metric: str) -> str:
    if ours is None or figure is None:
        return NONE
    return f"{ours.mean - figure.mean:+.2f}" if metric in FACTORS else f"{100 * ours.mean - figure.mean:+.1f}"


def _source(found: Measured) -> list[str]:
    count, asked = len(found.seeds), len({trial.seed for trial in found.cell.trials})
    seeds = NONE if not asked else str(count) if count == asked else f"{count} of {asked}"
    if not found.rows:
        return [seeds, NONE, NONE, NONE, _why(found)]
    hardware = " and ".join(dict.fromkeys(row["hardware"] for row in found.rows))
    commits = " and ".join(dict.fromkeys(commit_text(row["commit"]) for row in found.rows))
    return [seeds, str(found.collapsed), hardware, commits, ""]


def _why(found: Measured) -> str:
    """Why a cell has no rows; a bound such as chance is no measurement at all."""
    needs = found.cell.needs
    return "" if needs == "" else "not run" if needs is None else f"not run: needs {needs}"


def quick_note(reproduction: Reproduction) -> str:
    """What the small version is, said in every output of it."""
    if not reproduction.quick:
        return ""
    data = dict.fromkeys(
        f"{title_of(trial.dataset)} for {title_of(cell.dataset)}"
        for cell in reproduction.cells
        for trial in cell.trials
    )
    small, runs = shared()["quick"], ""
    if reproduction.kind == "search":
        studies = reproduction.settings["studies"]
        data = dict.fromkeys(f"{title_of(small['data'][dataset])} for {title_of(dataset)}" for dataset in studies)
        runs = f"{reproduction.settings['trials']} trials of "
    if not data:
        return "**Quick version**: fewer and shorter runs than the whole."
    asked = [trial.config.epochs for trial in reproduction.trials] or [small["config"]["epochs"]]
    epochs = " and ".join(dict.fromkeys(map(str, asked)))
    instead = f"embedded images, {'; '.join(data)}; {runs}{epochs} epochs, a small network"
    return f"**Quick version**, not the paper's experiment: {instead}. Nothing in it compares with the paper's figures."


def _notes(reproduction: Reproduction, measured: Sequence[Measured], *, last: bool) -> list[str]:
    rows = [row for found in measured for row in found.rows]
    shares = [METRICS[metric] for metric in reproduction.metrics if metric not in FACTORS]
    unit = f"{', '.join(shares).capitalize()} in percent on test images; means" if shares else "Means"
    notes = [
        f"{unit} ± standard deviation (n - 1) over seeds. *Collapsed*: {collapse_text(sum(map(broke_off, rows)))}."
    ]
    if last:
        rules = frozenset[str]().union(*(found.cell.keeps for found in measured))
        kept = "; ".join(RULES.get(rule, f"by the rule `{rule}`") for rule in sorted(rules))
        notes.append(f"*Last epoch*: beside the epoch that is kept, {kept}.")
    if not reproduction.quick:
        notes += [note for note in (reproduction.notes, _precisions(measured)) if note]
    notes += [f"{origin(rows)}."] if rows else ["Nothing is measured yet."]
    return notes


def _precisions(measured: Sequence[Measured]) -> str:
    """The precision that most settings ask for, and those that ask for another one."""
    asked = [(found.cell.trials[0].config.precision, found) for found in measured if found.cell.trials]
    if not asked:
        return ""
    ((usual, _),) = Counter(precision for precision, _ in asked).most_common(1)
    names = {found.cell.name for precision, found in asked if precision == usual}
    others: dict[str, dict[str, None]] = {}
    for precision, found in asked:
        if precision != usual:
            where = f" on {_data(found)}" if found.cell.name in names else ""
            others.setdefault(_spelt(precision), {})[found.cell.name + where] = None
    listed = ". ".join(f"{precision}: {'; '.join(cells)}" for precision, cells in others.items())
    unless = f", unless listed here ({listed})" if listed else ""
    return f"Rows are in {_spelt(usual)}{unless}; the paper does not say its precision."


def _spelt(precision: str) -> str:
    return "TF32" if precision == "tf32" else precision


def write_table(
    table: Table, folder: Path, title: str, before: Sequence[str] = (), figures: Sequence[Path] = ()
) -> list[Path]:
    """Write the table as Markdown (with title, sentences and figures), CSV, LaTeX, and JSON where it has records."""
    pictures = [f"![{path.stem}]({path.name})" for path in figures]
    page = "\n\n".join([f"# {title}", *(text for text in before if text), table.markdown(), *pictures]) + "\n"
    notes = [title + ".", *(text for text in before if text), *table.notes]
    tex = latex(table.head, table.lines, [note.replace("*", "") for note in notes], label=folder.name, text=table.text)
    written = {"table.md": page, "table.csv": table.csv(), "table.tex": tex}
    files = [write_text(folder / name, content) for name, content in written.items()]
    if table.records:
        content = {"title": title, "cells": list(table.records), "notes": list(table.notes)}
        files.append(write_json(folder / "table.json", content))
    return files
