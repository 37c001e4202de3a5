"""All methods on one data set under the unified protocol, those first whose worst group is best.

Not by accuracy, even where the paper has that alone: a network that reads the colour the other way round has 90 % of
the images of ColoredMNIST's shifted environment, and none of its worst group.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ipg.experiments.arms import Arm, Figure, Row, figure_of, training_seconds
from ipg.experiments.tables.rows import MeasuredStudy
from ipg.experiments.tables.short import beside
from ipg.experiments.tables.text import (
    NAMES,
    NONE,
    code,
    collapse_text,
    commits_text,
    figure_text,
    markdown,
    origin,
    percent,
    restarts_text,
    seeds_text,
    short,
    unmeasured_text,
    wrapped,
)
from ipg.methods import method_class
from ipg.methods.base import NEEDS
from ipg.methods.options import option_defaults
from ipg.words import number_of

__all__ = ["ENDING", "contender", "ranked", "rivals_table"]

ENDING = "_unified"
"""How studies of the unified protocol end."""
TIMED = 2
"""Trials that times are told from, at the least: of one it may be the first of its process, which waits for much."""
MARK = "†"
"""Behind a figure of the paper's that is of something else than its line, by more than its protocol."""
_VARIANTS = {
    "augment": {"random": "random copies", "swap": "opposite colour"},
    "attribution": {"ixg": "input × gradient"},
}
"""Options that make two contenders of one method, in words."""


def rivals_table(study: MeasuredStudy, figures: Sequence[Figure]) -> str:
    """The table of a study of the unified protocol: what each method needs, reaches and costs, the paper beside."""
    arms = ranked(study)
    if not arms:
        return "Not measured yet."
    by_group = all(arm.config["selection"] == "worst_group" for arm in arms)
    metric = "worst_group" if by_group else "average"
    plain = [arm for arm in arms if arm.method == "erm"]
    head = ["", "needs", "worst group" if by_group else "accuracy", "average" if by_group else "worst group"]
    head += ["time", "seeds", "paper, its own protocol"]
    lines = [
        [
            contender(arm, arms),
            ", ".join(sorted(method_class(arm.method).needs)) or NONE,
            percent(arm.spread(metric)),
            percent(arm.spread("average" if by_group else "worst_group")),
            _times(arm, plain),
            seeds_text(arm),
            _cell(_figure(arm, figures, by_group=by_group)),
        ]
        for arm in arms
    ]
    return "\n\n".join(
        [markdown(head, lines, text=2), wrapped(_notes(arms, figures, by_group=by_group)), _from(arms, study)]
    )


def ranked(study: MeasuredStudy) -> list[Arm]:
    """The arms that have rows, the best worst group first."""
    arms = [arm for arm in study.arms if arm.rows]
    return sorted(arms, key=lambda arm: (-_mean(arm, "worst_group"), -_mean(arm, "average")))


def _figure(arm: Arm, figures: Sequence[Figure], *, by_group: bool) -> Figure | None:
    """What the paper has for the method, or quotes from others for one with the arm's options."""
    found = beside(arm, figures) if by_group else figure_of(arm, figures)
    options = {**option_defaults(method_class(arm.method)), **arm.options}
    wanted = (arm.dataset, arm.method, "worst_group" if by_group else "average")
    quoted = (
        figure
        for figure in figures
        if (figure.dataset, figure.rival, figure.metric) == wanted and figure.options.items() <= options.items()
    )
    return found or next(quoted, None)


def _cell(figure: Figure | None) -> str:
    """The figure, marked where it is of something else than its line."""
    return figure_text(figure) + (f" {MARK}" if figure and figure.note else "")


def _marked(arms: Sequence[Arm], figures: Sequence[Figure], *, by_group: bool) -> str:
    """A sentence on what is marked; none without marks."""
    told = [(contender(arm, arms), _figure(arm, figures, by_group=by_group)) for arm in arms]
    notes = "; ".join(f"{title}'s is {figure.note}" for title, figure in told if figure and figure.note)
    return f" {MARK}: not the quantity that its line shows: {notes}." if notes else ""


def _notes(arms: Sequence[Arm], figures: Sequence[Figure], *, by_group: bool) -> str:
    """What the columns are."""
    networks = sorted({str(arm.config["model"]) for arm in arms})
    epochs = sorted({int(arm.config["epochs"]) for arm in arms})
    collapses = [f"{contender(arm, arms)}: {arm.collapsed} of {len(arm.rows)}" for arm in arms if arm.collapsed]
    meaning = collapse_text(sum(arm.broke_off for arm in arms)).capitalize()
    begun = restarts_text((contender(arm, arms), arm) for arm in arms)
    lost = unmeasured_text((contender(arm, arms), arm.unmeasured, len(arm.rows)) for arm in arms)
    return (
        "Test accuracy in percent, mean ± standard deviation over seeds, ranked by the worst group. Network: "
        f"{', '.join(map(code, networks))}; {' or '.join(map(str, epochs))} epochs; one rule keeps the epoch of all "
        f"methods ({' and '.join(sorted({code(str(arm.config['selection'])) for arm in arms}))}). Each method had the "
        "same number of configurations to choose from, or all it has if they are fewer. One seed chose without test "
        f"images, and the choice was frozen before these rows were made. {_rule(arms)}{_timing(arms)} *Paper*: the "
        "paper's figure for the method, mostly quoted from others under their own protocols"
        + (", on ResNet-50" if by_group else "")
        + f".{_marked(arms, figures, by_group=by_group)} {meaning}: {'; '.join(collapses) or 'none'}."
        + "".join(f" {text}" for text in (begun, lost) if text)
    )


def _rule(arms: Sequence[Arm]) -> str:
    """What it is to have a rule for the shortcut, where a method has one."""
    known = any("shortcut rule" in method_class(arm.method).needs for arm in arms)
    return f"*Shortcut rule*: {NEEDS['shortcut rule']}. " if known else ""


def _from(arms: Sequence[Arm], study: MeasuredStudy) -> str:
    rows: list[Row] = [row for arm in arms for row in arm.rows]
    return wrapped(f"{origin(rows)}. All settings: `ipg study {study.name} --list`.")


def contender(arm: Arm, among: Sequence[Arm]) -> str:
    """The method, with what sets it apart from another contender of the same name."""
    apart = [_VARIANTS[name][str(arm.options[name])] for name in _VARIANTS if arm.options.get(name) in _VARIANTS[name]]
    if arm.method == "erm" and not arm.config["class_weighted"]:
        apart.append("classes not weighted")
    if len({other.config["every"] for other in among if other.method == arm.method}) > 1:
        apart.append("every step" if arm.config["every"] == 1 else f"every {arm.config['every']} steps")
    return ", ".join([NAMES.get(arm.method, arm.method), *apart])


def _mean(arm: Arm, metric: str) -> float:
    found = arm.spread(metric)
    return -1.0 if found is None else found.mean


def _timing(arms: Sequence[Arm]) -> str:
    """What the times are, and what of."""
    erm = [arm for arm in arms if arm.method == "erm"]
    if all(_times(arm, erm) == NONE for arm in arms):
        return "*Time*: not measured yet."
    told = "*Time*: how long a trial takes beside ERM's in the same study, with its evaluations, without compiling"
    if timed := [row for arm in arms for row in arm.timed]:
        plain = next((arm.timed for arm in erm if arm.timed), ())
        length = f" (ERM: {short(statistics.median(known))} s)" if (known := _seconds(plain)) else ""
        seeds = number_of(len({row["seed"] for row in timed}), "seed")
        return (
            f"{told}{length}. It was measured apart, with {seeds}: one trial at a time, each after a short one of its "
            f"kind (`ipg study --timed`, commit {commits_text(timed)})."
        )
    return f"{told}, in the median over at least {TIMED} trials that had the GPU to themselves."


def _seconds(rows: Sequence[Row]) -> list[float]:
    """Of training, of the rows that tell what it costs."""
    return [seconds for row in rows if (seconds := training_seconds(row)) is not None]


def _times(arm: Arm, plain: Sequence[Arm]) -> str:
    """How long a trial takes beside one of ERM, in medians, compiling and capturing apart."""
    if not plain:
        return NONE
    again = bool(plain[0].timed)
    mine, theirs = (_seconds(one.timed if again else one.rows) for one in (arm, plain[0]))
    if min(len(mine), len(theirs)) < (1 if again else TIMED) or statistics.median(theirs) <= 0:
        return NONE
    return f"{short(statistics.median(mine) / statistics.median(theirs))} ×"
