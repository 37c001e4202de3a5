"""One study as a table: ours beside the paper's, the difference, how many seeds, and where the rows come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ipg.evaluation.spread import Paired, Spread, paired, spread
from ipg.experiments.arms import Arm, Figure, Row, figure_of
from ipg.experiments.tables.long import BUILDER, PAIR_SETTINGS, varying_settings
from ipg.experiments.tables.rows import MeasuredStudy
from ipg.experiments.tables.short import SUBSET, beside
from ipg.experiments.tables.text import (
    NAMES,
    NONE,
    collapse_text,
    commit_text,
    figure_text,
    origin,
    percent,
    seeds_of,
    unmeasured_text,
    words,
)
from ipg.methods import method_class

__all__ = ["METRICS", "Compared", "Line", "StudyTable", "study_table"]

METRICS = {
    "average": "accuracy",
    "average_reweighted": "accuracy, reweighted",
    "group_mean": "mean of groups",
    "worst_group": "worst group",
    "pair_disagreement": "pairs that disagree",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
"""Metrics as tables call them; rows from before one was measured lack it."""
BALANCED = {"balanced": "balanced accuracy"}
GROUP = "group: "
"""Before the name of a group whose accuracy is a metric."""
JUDGED = ("worst_group", "average")
"""What two arms are compared by."""


@dataclass(frozen=True)
class Compared:
    """One arm less another in a metric, over the seeds that both have."""

    first: str
    second: str
    metric: str
    seeds: int
    result: Paired

    def __str__(self) -> str:
        found = self.result.difference
        spread = "" if found.deviation is None else f" ± {100 * found.deviation:.1f}"
        interval = found.interval
        where = "" if interval is None else f" ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"
        p = "" if self.result.p is None else f", p {self.result.p:.2g}"
        return f"{METRICS[self.metric]} {100 * found.mean:+.1f}{spread}{where}{p}"

    def record(self) -> dict[str, Any]:
        """For programs: fractions."""
        found = self.result.difference
        low, high = found.interval or (None, None)
        return {
            "first": self.first, "second": self.second, "metric": self.metric, "seeds": self.seeds,
            "difference": found.mean, "deviation": found.deviation, "low": low, "high": high, "p": self.result.p,
        }  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One arm of a study."""

    method: str
    name: str
    protocol: str
    dataset: str
    settings: Mapping[str, Any]
    """Those in which the arms of the study differ, the method's own options among them; None where one has no say."""
    values: Mapping[str, Spread | None]
    """By metric, fractions over the seeds."""
    paper: Mapping[str, Figure]
    """By metric, where the paper has one."""
    seeds: int
    asked: int
    collapsed: int
    seconds: float | None
    selection: str
    hardware: tuple[str, ...]
    commits: tuple[str, ...]
    broke_off: int
    """Of those that collapsed."""
    unmeasured: int
    """Of those that broke off."""

    def difference(self, metric: str) -> float | None:
        """Ours less the paper's, in points."""
        ours, theirs = self.values.get(metric), self.paper.get(metric)
        return None if ours is None or theirs is None else 100 * ours.mean - theirs.mean

    def record(self) -> dict[str, Any]:
        """All of it on one level, for programs: fractions and seconds as they are, the paper's figures in percent."""
        values: dict[str, Any] = {"method": self.method, "protocol": self.protocol, "dataset": self.dataset}
        values |= {"seeds": self.seeds, "seeds_asked": self.asked, "collapsed": self.collapsed}
        values |= {"seconds": self.seconds, "selection": self.selection, **self.settings}
        for metric, found in self.values.items():
            low, high = found.interval if found is not None and found.interval is not None else (None, None)
            values |= {
                metric: found.mean if found is not None else None,
                f"{metric}_deviation": found.deviation if found is not None else None,
                f"{metric}_low": low,
                f"{metric}_high": high,
            }
            if metric in self.paper:
                figure = self.paper[metric]
                values |= {f"{metric}_paper": figure.mean, f"{metric}_paper_deviation": figure.spread}
                values |= {f"{metric}_paper_table": figure.table, f"{metric}_difference": self.difference(metric)}
        return {**values, "hardware": " and ".join(self.hardware), "commits": " and ".join(self.commits)}


@dataclass(frozen=True)
class StudyTable:
    """The arms of a study, a line each."""

    study: str
    split: str
    lines: tuple[Line, ...]
    shared: str
    """A sentence on the settings that all arms have."""
    origin: str
    """Hardware, versions and commits of all rows."""
    metrics: Mapping[str, str] = field(default_factory=lambda: dict(METRICS))
    """What is shown, as the columns call it."""
    compared: tuple[Compared, ...] = ()
    """Two arms with each other."""

    @property
    def head(self) -> list[str]:
        """What the columns are, in words."""
        names = ["method", *map(words, self.lines[0].settings)]
        for metric, name in self.metrics.items():
            names += [name, *(["paper", "difference"] if self._quoted(metric) else [])]
        return [*names, "seeds", "selection", "collapsed", "seconds", "hardware", "commit"]

    @property
    def cells(self) -> list[list[str]]:
        """The lines as text, a dash where there is nothing."""
        return [self._cells(line) for line in self.lines]

    @property
    def notes(self) -> list[str]:
        """What a reader has to know, in sentences."""
        lost = unmeasured_text((line.name, line.unmeasured, line.seeds) for line in self.lines)
        quoted = any(map(self._quoted, self.metrics))
        difference = f"Difference: ours less the paper's, in points. {self._of_photographs()}" if quoted else ""
        return [
            f"{self.shared} In percent on the split `{self.split}`, mean ± standard deviation (n − 1) over seeds, with "
            "the 95 % interval of the mean (percentile bootstrap over seeds, always the same draws). "
            f"{difference}Accuracy, reweighted: groups in the proportions of the training images. "
            f"Collapsed: {collapse_text(sum(line.broke_off for line in self.lines))}.",
            *([lost] if lost else []),
            *([self._comparison()] if self.compared else []),
            f"{self.origin}.",
        ]

    def _of_photographs(self) -> str:
        """What the paper's figures are of where rows need not be of the same."""
        told = [line for line in self.lines if "worst_group" in line.paper]
        whole = ", and of all of CelebA" if any(line.dataset.endswith(SUBSET) for line in told) else ""
        return f"On photographs the paper's are of ResNet-50{whole}. " if told else ""

    def _comparison(self) -> str:
        """The two arms in a sentence."""
        first = self.compared[0]
        return (
            f"{first.first} less {first.second} over the {first.seeds} seeds that both have, in points with the 95 % "
            f"interval of the mean and the p of the sign-flip test: {'; '.join(map(str, self.compared))}. With few "
            "seeds intervals are too narrow, and p cannot be small (2 / 2^n at least)."
        )

    def records(self) -> list[dict[str, Any]]:
        """A flat mapping a line; all have the same names."""
        found = [line.record() for line in self.lines]
        names = dict.fromkeys(name for record in found for name in record)
        return [{name: record.get(name) for name in names} for record in found]

    def _quoted(self, metric: str) -> bool:
        return any(metric in line.paper for line in self.lines)

    def _cells(self, line: Line) -> list[str]:
        cells = [line.name, *(NONE if value is None else str(value) for value in line.settings.values())]
        for metric in self.metrics:
            cells.append(_text(line.values[metric]))
            if self._quoted(metric):
                far = line.difference(metric)
                cells += [figure_text(line.paper.get(metric)), NONE if far is None else f"{far:+.1f}".replace("-", "−")]
        return [
            *(*cells, seeds_of(line.seeds, line.asked), line.selection),
            str(line.collapsed) if line.seeds else NONE,
            NONE if line.seconds is None else f"{line.seconds:.1f}",
            ", ".join(line.hardware) or NONE,
            ", ".join(map(commit_text, line.commits)) or NONE,
        ]


def study_table(
    measured: MeasuredStudy,
    figures: Iterable[Figure],
    *,
    groups: bool = False,
    compare: tuple[str, str] | None = None,
) -> StudyTable:
    """The table of a study that has rows.

    Args:
        measured: the study with its rows.
        figures: what is published.
        groups: whether balanced accuracy and the accuracy of every group have columns.
        compare: two arms to compare seed by seed, each by its method, METHOD/PROTOCOL, or the number of its line.

    Raises:
        ValueError: there is no row, or not one arm that is meant.
    """
    rows = [row for arm in measured.arms for row in arm.rows]
    if not rows:
        raise ValueError(f"there is no row of {measured.name}; `ipg study {measured.name}` makes them")
    varying, shared = varying_settings(measured.arms)
    own = dict.fromkeys(name for arm in measured.arms for name in arm.options)
    known = list(figures) if measured.split == "test" else []  # what the paper's are of
    names = dict.fromkeys(name for row in rows for name in row["metrics"].get("groups") or {}) if groups else {}
    metrics = {**METRICS, **(BALANCED if groups else {}), **{f"{GROUP}{name}": name for name in names}}
    lines = tuple(_line(arm, [*varying, *own], known, metrics) for arm in measured.arms)
    compared = () if compare is None else _compared(measured.arms, *compare)
    return StudyTable(measured.name, measured.split, lines, shared, origin(rows), metrics, compared)


def _compared(arms: Sequence[Arm], first: str, second: str) -> tuple[Compared, ...]:
    """Two arms over the seeds that both have."""
    one, other = _named(arms, first), _named(arms, second)
    if one.dataset != other.dataset:
        raise ValueError(f"--compare {first} {second}: one is on {one.dataset}, the other on {other.dataset}")
    names = [f"{_title(arm).removesuffix(')')}, line {arms.index(arm) + 1})" for arm in (one, other)]
    found = []
    for metric in JUDGED:
        values = [
            {row["seed"]: value for row in arm.rows if (value := row["metrics"].get(metric)) is not None}
            for arm in (one, other)
        ]
        if seeds := sorted(values[0].keys() & values[1].keys()):
            result = paired(*([known[seed] for seed in seeds] for known in values))
            found.append(Compared(names[0], names[1], metric, len(seeds), result))
    if not found:
        raise ValueError(f"--compare {first} {second}: the two have no seed in common; make more with ipg study")
    return tuple(found)


def _named(arms: Sequence[Arm], name: str) -> Arm:
    """The one arm that is meant."""
    if name.isdecimal() and 1 <= int(name) <= len(arms):
        return arms[int(name) - 1]
    known = {number: arm for number, arm in enumerate(arms, 1) if name in (arm.method, f"{arm.method}/{arm.protocol}")}
    if len(known) == 1:
        return next(iter(known.values()))
    there = known or dict(enumerate(arms, 1))
    listed = ", ".join(f"{number}: {arm.method}/{arm.protocol}" for number, arm in there.items())
    how = "several arms are" if known else "no arm is"
    raise ValueError(f"--compare {name}: {how} called so; name one by the number of its line ({listed})")


def _title(arm: Arm) -> str:
    return f"{NAMES.get(arm.method, arm.method)} ({arm.protocol})"


def _spread_of(arm: Arm, metric: str) -> Spread | None:
    """A metric over the seeds, or the accuracy of a group."""
    if metric in BALANCED:
        values = [_balanced(row["metrics"]) for row in arm.rows]
    elif metric.startswith(GROUP):
        groups = [row["metrics"].get("groups") or {} for row in arm.rows]
        values = [of_row.get(metric.removeprefix(GROUP), {}).get("accuracy") for of_row in groups]
    else:
        return arm.spread(metric)
    known = [value for value in values if value is not None]
    return spread(known) if known and len(known) == len(values) else None


def _balanced(metrics: Mapping[str, Any]) -> float | None:
    """The mean accuracy of the classes; of rows from before it was measured, from that of their groups."""
    if metrics.get("balanced") is not None:
        return float(metrics["balanced"])
    right: dict[str, list[tuple[float, int]]] = {}
    for name, group in (metrics.get("groups") or {}).items():
        if group["accuracy"] is not None and group["count"]:
            right.setdefault(name.rpartition(", ")[0], []).append((group["accuracy"], group["count"]))
    shares = [sum(share * n for share, n in known) / sum(n for _, n in known) for known in right.values()]
    return fmean(shares) if shares else None


def _line(arm: Arm, settings: Sequence[str], figures: Sequence[Figure], metrics: Iterable[str]) -> Line:
    found = {metric: figure_of(arm, figures, metric) for metric in METRICS}
    if arm.rows:
        found["worst_group"] = found["worst_group"] or beside(arm, figures)
    return Line(
        method=arm.method,
        name=_title(arm),
        protocol=arm.protocol,
        dataset=arm.dataset,
        settings={
            name: arm.setting(name) if _has_a_say(arm, name) else None for name in settings if name != "selection"
        },
        values={metric: _spread_of(arm, metric) for metric in metrics},
        paper={metric: figure for metric, figure in found.items() if figure is not None},
        seeds=len(arm.rows),
        asked=len(arm.seeds),
        collapsed=arm.collapsed,
        seconds=arm.seconds,
        selection=str(arm.config["selection"]),
        hardware=_all_of(arm.rows, "hardware"),
        commits=_all_of(arm.rows, "commit"),
        broke_off=arm.broke_off,
        unmeasured=arm.unmeasured,
    )


def _has_a_say(arm: Arm, setting: str) -> bool:
    """Whether the arm's method makes any use of it."""
    method = method_class(arm.method)
    if setting == "class_weighted":
        return method.weighs_classes
    return "pairs" in method.needs or setting not in (*PAIR_SETTINGS, BUILDER)


def _all_of(rows: Iterable[Row], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(row[name]) for row in rows))


def _text(found: Spread | None) -> str:
    """`72.8 ± 0.5 (72.5 to 73.1)`."""
    if found is None or found.interval is None:
        return percent(found)
    return f"{percent(found)} ({100 * found.interval.low:.1f} to {100 * found.interval.high:.1f})"
