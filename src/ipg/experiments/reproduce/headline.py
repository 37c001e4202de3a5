"""The headline table and its picture: what guidance does on each data set, beside the paper's figure and the best of
its rivals.

Which rows a cell stands on is fixed here by name, never chosen by its figure. The best rivals alone are chosen by
their worst group, which favours them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipg.experiments.arms import Arm, Row, Spread, broke_off
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure
from ipg.experiments.tables.rivals import ENDING, contender, ranked
from ipg.experiments.tables.rows import MeasuredStudy
from ipg.experiments.tables.text import (
    NAMES,
    NONE,
    code,
    collapse_text,
    figure_text,
    markdown,
    percent,
    seeds_of,
    seeds_text,
    wrapped,
)
from ipg.methods import method_class
from ipg.report.figures.dots import Dots, Strip, draw_dots
from ipg.report.figures.drawing import standalone

__all__ = ["COLUMNS", "Column", "Headline", "find_headlines", "headline_figure", "headline_table"]


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
_FIXED = "continuous"
"""IPG with tau at 0."""
_OWN = ("ipg", _FIXED)
"""No rivals of each other."""
_BOUND = "oracle"
"""Trains on images without the shortcut: a bound, not a method to use."""


@dataclass(frozen=True)
class Headline:
    """What is known of a data set: the cells of its reproduction, and the contenders of the one protocol."""

    column: Column
    plain: Measured
    ours: Measured
    paper: Measured
    contenders: Sequence[Arm]

    @property
    def own(self) -> list[Arm]:
        """IPG under the one protocol."""
        return [arm for arm in self.contenders if arm.method == "ipg"]

    @property
    def rivals(self) -> list[Arm]:
        """All other methods, the best worst group first."""
        return [arm for arm in self.contenders if arm.method not in (*_OWN, _BOUND)]

    @property
    def with_pairs(self) -> list[Arm]:
        """Those that need the same pairs, and nothing else."""
        return [arm for arm in self.rivals if method_class(arm.method).needs == {"pairs"}]

    @property
    def best(self) -> tuple[Arm | None, Arm | None]:
        """The best other method with the same pairs, and the best of all others."""
        return next(iter(self.with_pairs), None), next(iter(self.rivals), None)

    @property
    def cells(self) -> tuple[str, ...]:
        """The column of the table, from the top."""
        metric = self.column.metric
        return (
            *(_figure(found, metric) for found in (self.plain, self.ours, self.paper)),
            figure_text(self.paper.cell.figures.get(metric)),
            "<br>".join(_named(arm, self.contenders, metric) for arm in self.own) or NONE,
            *(_named(arm, self.contenders, metric) if arm is not None else NONE for arm in self.best),
            _pairs(self.ours.rows, self.paper.rows, [row for arm in self.own for row in arm.rows]),
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """What the cells stand on."""
        shown = (*self.own, *(arm for arm in self.best if arm is not None))
        return (*self.plain.rows, *self.ours.rows, *self.paper.rows, *(row for arm in shown for row in arm.rows))

    @property
    def rules(self) -> str:
        """By which rules an epoch is kept."""
        return " or ".join(sorted({code(str(row["config"]["selection"])) for row in self.rows}))

    @property
    def strips(self) -> tuple[Strip, ...]:
        """What the picture shows: plain training, IPG, and under the one protocol IPG and the best others."""
        metric = self.column.metric
        known = [
            Strip(name, series, tuple(found.values(metric)), found.spread(metric))
            for name, series, found in (
                ("Plain training", "before", self.plain),
                ("IPG, our settings", "after", self.ours),
            )
        ]
        first, second = self.best
        for arm in (*self.own, first, None if second is first else second):
            if arm is not None:
                name = f"One protocol: {contender(arm, self.contenders)}"
                values = tuple(row["metrics"][metric] for row in arm.rows)
                known.append(Strip(name, "other-6" if arm.method == "ipg" else "other-1", values, arm.spread(metric)))
        return tuple(strip for strip in known if strip.spread is not None)


def find_headlines(results: Path, studies: Sequence[MeasuredStudy]) -> list[Headline]:
    """What the rows say of each data set.

    Raises:
        ValueError: a reproduction does not have the cell that a column names.
    """
    rows = all_rows(results)
    unified = {study.name: study for study in studies if study.name.endswith(ENDING) and study.split == "test"}
    found = []
    for column in COLUMNS:
        measured = measure(load_reproduction(column.reproduction), rows)
        plain, ours, paper = (_cell(measured, column, name) for name in (column.plain, column.ours, column.paper))
        study = unified.get(f"{column.dataset}{ENDING}")
        found.append(Headline(column, plain, ours, paper, ranked(study) if study is not None else []))
    return found


def headline_table(found: Sequence[Headline]) -> str:
    """The table of the README, and beneath it what its figures are and where they come from."""
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
    head = ["", *(f"{one.column.title}<br>{_METRICS[one.column.metric]}" for one in found)]
    lines = [[title, *cells] for title, *cells in zip(titles, *(one.cells for one in found), strict=True)]
    return f"{markdown(head, lines)}\n\n{wrapped(_notes(found))}"


def headline_figure(found: Sequence[Headline]) -> str:
    """The same as a picture, every seed a ring; SVG as a file. Empty without rows."""
    blocks = tuple((one.column.title, _METRICS[one.column.metric], strips) for one in found if (strips := one.strips))
    drawn = draw_dots(Dots("Test images right", blocks), name="headline", width=720, names=250)
    return standalone(drawn) if drawn else ""


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


def _notes(found: Sequence[Headline]) -> str:
    rows = [row for one in found for row in one.rows]
    rules: dict[str, list[str]] = {}
    for one in found:
        rules.setdefault(one.rules, []).append(one.column.title)
    kept = "; ".join(f"{rule} on {', '.join(titles)}" for rule, titles in rules.items() if rule)
    machines = " and ".join(dict.fromkeys(f"{row['hardware']}, torch {row['versions']['torch']}" for row in rows))
    return (
        "Percent of test images right: mean ± standard deviation (number of seeds; *5 of 10*: five where the paper "
        "has ten). *Worst group*: the lowest accuracy among the groups of label and shortcut. *Collapsed*: "
        f"{collapse_text(sum(map(broke_off, rows)))}. On "
        "photographs plain training weights classes, as IPG does, and the network is MobileNetV2 ([its "
        "weights](docs/results.md#the-network-on-photographs)); the published figures are of ResNet-50, and of all of "
        "CelebA. *One protocol*: each method has the same network, pairs and "
        "epochs, and as many configurations to choose from without test images. The best others are picked by their "
        f"worst group on test images, which favours them. {_uncounted(found)}{_unmet(found)}Kept epoch: "
        f"{kept or NONE}. {machines or NONE}. Commits, and every other row: [benchmarks](docs/benchmarks.md) and "
        "[results](docs/results.md)."
    )


def _uncounted(found: Iterable[Headline]) -> str:
    """What the variant of IPG reaches that is no rival of it; nothing where it has not run."""
    told = [
        f"{one.column.title}: {_text(arm.spread(one.column.metric), seeds_text(arm), arm.collapsed)}"
        for one in found
        for arm in one.contenders
        if arm.method == _FIXED
    ]
    name = f"{NAMES[_FIXED]}, which is IPG with τ fixed at 0, its default, does not count as another method"
    return f"{name} ({'; '.join(told)}). " if told else ""


def _unmet(found: Sequence[Headline]) -> str:
    """Where a method with pairs that is best elsewhere has not run: which have."""
    best = {arm.method for one in found for arm in one.with_pairs[:1]}
    few = [one for one in found if one.with_pairs and not best <= {arm.method for arm in one.with_pairs}]
    ran = [(one.column.title, [contender(arm, one.contenders) for arm in one.with_pairs]) for one in few]
    return "".join(
        f"Of the other methods with pairs only {' and '.join(names)} ran on {title}. " for title, names in ran
    )
