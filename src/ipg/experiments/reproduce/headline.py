"""The headline table: what guidance does on each data set, beside the paper's figure and the best of its rivals.

Which rows a cell stands on is fixed here by name, never chosen by its figure. The best rivals alone are chosen by
theirs, which favours them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipg.experiments.arms import Arm, Row, Spread
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure
from ipg.experiments.tables.rivals import ENDING, contender, ranked
from ipg.experiments.tables.rows import Measured as Studied
from ipg.experiments.tables.text import NONE, code, figure_text, markdown, percent, seeds_of, seeds_text, wrapped
from ipg.methods import method_class

__all__ = ["COLUMNS", "Column", "headline_table"]


@dataclass(frozen=True)
class Column:
    """A data set: the metric it is judged by, and the cells of a reproduction that it is told by."""

    title: str
    dataset: str
    metric: str
    reproduction: str
    plain: str
    ours: str
    paper: str


COLUMNS = (
    Column(
        "ColoredMNIST", "colored_mnist", "average", "accuracy_colored_mnist",
        plain="ERM", ours="IPG, our settings", paper="IPG",
    ),
    Column(
        "Waterbirds-100", "waterbirds100", "worst_group", "accuracy_waterbirds100",
        plain="ERM, our settings, class-weighted", ours="IPG, our settings", paper="IPG",
    ),
    Column(
        "Waterbirds-100 reversed", "waterbirds100_reverse", "worst_group", "accuracy_waterbirds100",
        plain="ERM, our settings, class-weighted", ours="IPG, our settings", paper="IPG",
    ),
    Column(
        "CelebA (part)", "celeba_subset", "worst_group", "accuracy_celeba",
        plain="ERM, our settings, class-weighted", ours="IPG, our settings, matched pairs", paper="IPG, rate 0.008",
    ),
)  # fmt: skip
_METRICS = {"average": "accuracy", "worst_group": "worst group"}
_OWN = ("ipg", "continuous")
"""IPG, and IPG with tau at 0: no rivals of each other."""
_BOUND = "oracle"
"""Trains on images without the shortcut: a bound, not a method to use."""


@dataclass(frozen=True)
class _Told:
    """A column's cells, from the top, and the rows that they stand on."""

    cells: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def rules(self) -> str:
        """By which rules an epoch is kept."""
        return " or ".join(sorted({code(str(row["config"]["selection"])) for row in self.rows}))


def headline_table(results: Path, studies: Sequence[Studied]) -> str:
    """The table of the README, and beneath it what its figures are and where they come from."""
    rows = all_rows(results)
    unified = {study.name: study for study in studies if study.name.endswith(ENDING) and study.split == "test"}
    told = [_told(column, rows, unified.get(f"{column.dataset}{ENDING}")) for column in COLUMNS]
    titles = (
        "Plain training",
        "**IPG, our settings**",
        "IPG, the paper's settings",
        "*IPG as published*",
        "IPG, one protocol for all methods",
        "– best other method with the same pairs",
        "– best of all other methods",
        "Pairs",
    )
    head = ["", *(f"{column.title}<br>{_METRICS[column.metric]}" for column in COLUMNS)]
    lines = [[title, *cells] for title, *cells in zip(titles, *(column.cells for column in told), strict=True)]
    return f"{markdown(head, lines)}\n\n{wrapped(_notes(told))}"


def _told(column: Column, rows: Iterable[Row], study: Studied | None) -> _Told:
    measured = measure(load_reproduction(column.reproduction), rows)
    plain, ours, paper = (_cell(measured, column, name) for name in (column.plain, column.ours, column.paper))
    contenders = ranked(study) if study is not None else []
    own = [arm for arm in contenders if arm.method == "ipg"]
    rivals = [arm for arm in contenders if arm.method not in (*_OWN, _BOUND)]
    with_pairs = [arm for arm in rivals if method_class(arm.method).needs == {"pairs"}]
    best = [next(iter(arms), None) for arms in (with_pairs, rivals)]
    cells = (
        *(_figure(found, column.metric) for found in (plain, ours, paper)),
        figure_text(paper.cell.figures.get(column.metric)),
        "<br>".join(_named(arm, contenders, column.metric) for arm in own) or NONE,
        *(_named(arm, contenders, column.metric) if arm is not None else NONE for arm in best),
        _pairs(ours.rows, paper.rows, [row for arm in own for row in arm.rows]),
    )
    shown = [*own, *(arm for arm in best if arm is not None)]
    return _Told(cells, (*plain.rows, *ours.rows, *paper.rows, *(row for arm in shown for row in arm.rows)))


def _cell(measured: Iterable[Measured], column: Column, name: str) -> Measured:
    for found in measured:
        if (found.cell.dataset, found.cell.name) == (column.dataset, name):
            return found
    raise ValueError(f"the reproduction {column.reproduction} has no cell {name!r} on {column.dataset}; see COLUMNS")


def _figure(found: Measured, metric: str) -> str:
    """The mean, its spread and the seeds."""
    seeds = seeds_of(len(found.seeds), len(found.cell.trials))
    return _text(found.spread(metric), seeds, found.collapsed)


def _named(arm: Arm, among: Sequence[Arm], metric: str) -> str:
    """The same of a contender, above its name where it is not IPG alone."""
    name = contender(arm, among).removeprefix("IPG").removeprefix(", ")
    return "<br>".join(part for part in (_text(arm.spread(metric), seeds_text(arm), arm.collapsed), name) if part)


def _text(spread: Spread | None, seeds: str, collapsed: int) -> str:
    if spread is None:
        return NONE
    return f"{percent(spread)} ({seeds}{f', {collapsed} collapsed' if collapsed else ''})"


def _pairs(ours: Iterable[Row], paper: Iterable[Row], unified: Iterable[Row]) -> str:
    """How many pairs guide: in our settings, and where they are others in the paper's and in the one protocol."""

    def count(rows: Iterable[Row]) -> str:
        return " or ".join(f"{number:,}" for number in sorted({row["config"]["pairs"] for row in rows}))

    first = count(ours)
    others = {"paper's settings": count(paper), "one protocol": count(unified)}
    told = ", ".join(f"{name}: {other}" for name, other in others.items() if other not in ("", first))
    return f"{first or NONE}<br>{told}" if told else first or NONE


def _notes(told: Sequence[_Told]) -> str:
    rows = [row for column in told for row in column.rows]
    rules: dict[str, list[str]] = {}
    for column, found in zip(COLUMNS, told, strict=True):
        rules.setdefault(found.rules, []).append(column.title)
    kept = "; ".join(f"{rule} on {', '.join(titles)}" for rule, titles in rules.items() if rule)
    machines = " and ".join(dict.fromkeys(f"{row['hardware']}, torch {row['versions']['torch']}" for row in rows))
    return (
        "Percent of test images right: mean ± standard deviation (number of seeds). *Worst group*: the lowest accuracy "
        "among the groups of label and shortcut. *Collapsed*: the seed gives every image the same class. On "
        "photographs plain training weights classes, as IPG does, and the network is MobileNetV2; the published "
        "figures are of ResNet-50, and of all of CelebA. *One protocol*: each method has the same network, pairs and "
        "epochs, and as many configurations to choose from without test images. The best others are picked by the "
        f"figures shown, which favours them. Kept epoch: {kept or NONE}. {machines or NONE}. Commits, and every other "
        "row: [benchmarks](docs/benchmarks.md) and [results](docs/results.md)."
    )
