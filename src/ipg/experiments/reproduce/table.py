"""The table of a reproduction: ours beside the paper's, the difference, seeds, selection rule, hardware and commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ipg.experiments.arms import Figure, Spread, broke_off
from ipg.experiments.reproduce.cells import Table
from ipg.experiments.reproduce.plan import Reproduction, shared, title_of
from ipg.experiments.reproduce.rows import Measured
from ipg.experiments.tables.study import METRICS as SHARES
from ipg.experiments.tables.text import NONE, collapse_text, commit_text, figure_text, origin, seeds_of

__all__ = ["FACTORS", "METRICS", "RULES", "quick_note", "table_of"]

METRICS = {**SHARES, "cost": "time over ERM", "task_loss": "least task loss"}
"""Metrics as the tables call them."""
FACTORS = ("cost", "task_loss")
"""Metrics that are no shares."""
RULES = {
    "last": "that at the end of training",
    "training_environments": "the paper's on ColoredMNIST: the best in the training environments, where the use of "
    "colour pays",
    "worst_group": "the paper's on photographs: the best in the worst group of the validation images",
    "pairs": "the best by balanced validation accuracy times the share of held-out pairs that agree",
}
"""Which epoch a rule keeps, in words."""
LEAST = {"task_loss": "least of all epochs"}
"""Metrics that are of no kept epoch, and of which one they are."""
LAST_EPOCH = " *Last epoch*: at the end of training, whichever is kept."


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
    _, _, hardware, commit, note = _source(found)
    mean = None if ours is None else scale * ours.mean
    low, high = (None, None) if ours is None or ours.interval is None else (scale * end for end in ours.interval)
    return {
        "version": "quick" if reproduction.quick else "whole",
        "data": _data(found),
        "setting": found.cell.name,
        "protocol": found.cell.protocol,
        "metric": metric,
        "mean": mean,
        "deviation": None if ours is None or ours.deviation is None else scale * ours.deviation,
        "interval low": low,
        "interval high": high,
        "last epoch mean": None if last is None else scale * last.mean,
        "last epoch deviation": None if last is None or last.deviation is None else scale * last.deviation,
        "seeds": len(found.seeds) if ours is None else ours.count,
        "seeds asked": _asked(found),
        "selection": LEAST.get(metric, " and ".join(_rules(found))) if found.cell.trials else None,
        "paper mean": figure.mean if figure else None,
        "paper deviation": figure.spread if figure else None,
        "paper trials": figure.count if figure else None,
        "difference": None if mean is None or figure is None else mean - figure.mean,
        "collapsed": found.collapsed if found.rows else None,
        "hardware": hardware if found.rows else None,
        "commit": commit.replace("`", "") if found.rows else None,
        "note": note,
    }


def _rules(found: Measured) -> list[str]:
    """By which rules an epoch is kept."""
    return sorted({trial.config.selection for trial in found.cell.trials})


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
        _ours(ours, metric) + (f" ({ours.count})" if ours is not None and _of_fewer(found, ours) else ""),
        *([_ours(_last(found, metric), metric)] if last else []),
        *([figure_text(figure), _difference(ours, figure, metric)] if quoted else []),
    ]


def _of_fewer(found: Measured, ours: Spread) -> bool:
    """Whether a figure is not of all seeds, as times are not."""
    return ours.count < len(found.seeds)


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


def _difference(ours: Spread | None, figure: Figure | None, metric: str) -> str:
    if ours is None or figure is None:
        return NONE
    return f"{ours.mean - figure.mean:+.2f}" if metric in FACTORS else f"{100 * ours.mean - figure.mean:+.1f}"


def _asked(found: Measured) -> int:
    """How many seeds there are when all is run."""
    return len({trial.seed for trial in found.cell.trials})


def _source(found: Measured) -> list[str]:
    count, asked = len(found.seeds), _asked(found)
    seeds = seeds_of(count, asked) if asked else NONE
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
        f"{unit} ± standard deviation (n - 1) over seeds; as CSV and JSON with the 95 % interval of each (percentile "
        f"bootstrap over seeds). *Collapsed*: {collapse_text(sum(map(broke_off, rows)))}."
    ]
    times = [(found, ours) for found in measured if (ours := found.spread("cost")) is not None]
    if any(_of_fewer(found, ours) for found, ours in times):
        notes.append(
            "*In brackets*: of how many seeds a time is. Those count that did not begin their process, did not break "
            "off and had the GPU to themselves, beside an ERM that was run alike."
        )
    if set(reproduction.metrics) <= LEAST.keys():
        notes.append("*Selection rule*: none, it is the least of all epochs.")
    elif rules := _selection(measured):
        notes.append(f"*Selection rule*, by which an epoch is kept: {rules}." + (LAST_EPOCH if last else ""))
    if not reproduction.quick:
        notes += [note for note in (reproduction.notes, _precisions(measured)) if note]
    notes += [f"{origin(rows)}."] if rows else ["Nothing is measured yet."]
    return notes


def _selection(measured: Sequence[Measured]) -> str:
    """The rules, each with where it holds: data sets, protocols on them, or settings where these differ."""
    places: dict[str, dict[str, None]] = {}
    for data, of_data in _by(measured, _data).items():
        whole = len({rule for found in of_data for rule in _rules(found)}) == 1
        for protocol, cells in _by(of_data, lambda found: found.cell.protocol).items():
            rules = Counter(rule for found in cells for rule in _rules(found))
            where = data if whole else f"{data}, protocol {protocol}"
            for found in cells:
                for rule in _rules(found):
                    told = where if len(rules) == 1 else f"{where}, {found.cell.name}"
                    places.setdefault(rule, {})[told] = None
    words = {rule: f"`{rule}`" + (f", {RULES[rule]}" if rule in RULES else "") for rule in places}
    if len(places) == 1:
        return words[next(iter(places))]
    return "; ".join(f"{words[rule]} ({'; '.join(where)})" for rule, where in places.items())


def _by(measured: Sequence[Measured], key: Callable[[Measured], str]) -> dict[str, list[Measured]]:
    """What has trials, in groups."""
    groups: dict[str, list[Measured]] = {}
    for found in measured:
        if found.cell.trials:
            groups.setdefault(key(found), []).append(found)
    return groups


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
