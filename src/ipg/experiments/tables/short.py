"""The short table of a data set, as the README shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ipg.evaluation.statistics import wilson
from ipg.experiments.arms import Arm, Figure, figure_of
from ipg.experiments.tables.rows import Measured
from ipg.experiments.tables.text import (
    NAMES,
    NONE,
    PROTOCOLS,
    code,
    figure_text,
    markdown,
    numbers,
    origin,
    percent,
    seeds_text,
    words,
    wrapped,
)
from ipg.methods import method_class
from ipg.methods.options import option_defaults

__all__ = ["beside", "dataset_table"]

SUBSET = "_subset"
"""How data sets end that hold a part of one of the paper's."""
_BUILT = {"counterparts": "real ", "background": "composed ", "matched": "matched ", "random": "random "}
"""Where pairs of photographs come from, by their builder."""


def dataset_table(dataset: str, studies: Sequence[Measured], figures: Sequence[Figure]) -> str:
    """The table of one data set for readers in a hurry: methods as they are by default, on the test split."""
    told = [arm for study in studies if study.split == "test" for arm in study.of(dataset)]
    arms = [arm for arm in told if arm.protocol != "unified" and _is_default(arm)]  # that has a table of its own
    if not any(arm.rows for arm in arms):
        return "Not measured yet."
    if all(arm.config["selection"] == "worst_group" for arm in arms):
        plain_first = sorted(arms, key=lambda arm: (_moves(arm), "pairs" in method_class(arm.method).needs))
        return _by_group([arm for arm in plain_first if arm.rows], figures)
    bounds = {figure.approach: figure for figure in figures if figure.dataset == dataset}
    head = ["", "accuracy", "seeds", "last epoch", "worst group", "seconds", "paper"]
    lines = [[_title(arm), *numbers(arm), figure_text(figure_of(arm, figures))] for arm in arms]
    for name, place in (("Random", 0), ("Optimal", len(lines) + 1)):
        if name in bounds:
            lines.insert(place, [name, *[""] * (len(head) - 2), figure_text(bounds[name])])
    notes = (
        "Test accuracy in percent, mean ± standard deviation over seeds, at the epoch that the selection rule keeps "
        "and at the last. *Worst group*: the mean over seeds of the lowest accuracy among the groups of label and "
        "attribute. *Seconds*: a trial with its evaluations."
    )
    return _page(head, lines, notes, arms)


def _by_group(arms: Sequence[Arm], figures: Sequence[Figure]) -> str:
    """The table of arms that are judged by their worst group."""
    networks = {str(arm.config["model"]) for arm in arms}
    paper = "paper, ResNet-50" + (", all data" if arms[0].dataset.endswith(SUBSET) else "")
    head = ["", "worst group", "interval", "seeds", "average", "worst group, last epoch", paper]
    lines = [
        [
            _title(arm, photographs=True),
            percent(arm.spread("worst_group")),
            _interval(arm),
            seeds_text(arm),
            percent(arm.spread()),
            percent(arm.spread("worst_group", last=True)),
            figure_text(beside(arm, figures)),
        ]
        for arm in arms
    ]
    notes = (
        f"Network: {' and '.join(map(code, sorted(networks)))}, where the paper has ResNet-50. Test accuracy in "
        "percent, mean ± standard deviation over seeds, at the epoch with the best worst group on validation images "
        "and at the last. *Interval*: 95 %, Wilson's, of the mean worst group for as many test images as the smallest "
        "group has. *Average*: over test images."
    )
    if any(map(_moves, arms)):
        notes += (
            " *Line moved*: the biases of the head are set after each epoch to suit the worst group of the validation "
            "images (`--decision worst_group`), as the paper does not."
        )
    return _page(head, lines, notes, arms)


def _page(head: Sequence[str], lines: Sequence[Sequence[str]], notes: str, arms: Sequence[Arm]) -> str:
    """The table, what its columns are, what the arms of each protocol share, and where the rows come from."""
    protocols = " ".join(_protocol_line(name, arms) for name in dict.fromkeys(arm.protocol for arm in arms))
    collapses = [f"{_title(arm)}: {arm.collapsed} of {len(arm.rows)}" for arm in arms if arm.collapsed]
    told = f"{notes} {protocols} Seeds that predict one class for every image: {'; '.join(collapses) or 'none'}."
    more = (
        f"{origin([row for arm in arms for row in arm.rows])}. All arms, how settings were chosen and how to make the "
        "rows again: [results](results/README.md)."
    )
    return "\n\n".join([markdown(head, lines), wrapped(told), wrapped(more)])


def beside(arm: Arm, figures: Sequence[Figure]) -> Figure | None:
    """What the paper has for the method's worst group with as many pairs, or the one figure that it has."""
    if arm.method == "erm" and arm.config["class_weighted"]:
        return None
    name = NAMES.get(arm.method, arm.method)
    dataset = arm.dataset.removesuffix(SUBSET)
    told = [f for f in figures if (f.dataset, f.metric) == (dataset, "worst_group")]
    mine = {f.approach: f for f in reversed(told)}  # the accuracy tables come first, and others repeat them
    if dataset != arm.dataset:  # its numbers of pairs are not ours
        return None if arm.rows[0]["config"].get("pair_builder") == "random" else mine.get(name)
    varied = any(approach.startswith(f"{name}, ") and approach.endswith(" pairs") for approach in mine)
    return mine.get(f"{name}, {arm.config['pairs']} pairs" if varied else name)


def _interval(arm: Arm) -> str:
    """How far the worst group's accuracy is known, its images being as few as they are."""
    found = arm.spread("worst_group")
    counts = [group["count"] for row in arm.rows for group in row["metrics"]["groups"].values() if group["count"]]
    if found is None or not counts:
        return NONE
    known = wilson(round(found.mean * min(counts)), min(counts))
    return f"{100 * known.low:.0f} to {100 * known.high:.0f}"


def _moves(arm: Arm) -> bool:
    """Whether the line between classes was drawn on validation images."""
    return bool(arm.config["decision"] != "argmax")


def _is_default(arm: Arm) -> bool:
    """Whether the method's own options are what they are when nothing is said."""
    defaults = option_defaults(method_class(arm.method))
    return all(defaults[name] == value for name, value in arm.options.items())


def _title(arm: Arm, *, photographs: bool = False) -> str:
    """The arm in words; of photographs it tells as well how classes are weighted and where pairs come from."""
    name = NAMES.get(arm.method, arm.method)
    if "pairs" not in method_class(arm.method).needs:
        name += ", class-weighted" if photographs and arm.config["class_weighted"] else ""
        return name + (", line moved" if _moves(arm) else "")
    count = arm.config["pairs"]
    kind = _BUILT.get(str(arm.rows[0]["config"].get("pair_builder")), "") if photographs else ""
    pairs = f"{count:,} {kind}pairs" if isinstance(count, int) else f"pairs of {count}"
    if arm.method not in ("ipg", "continuous"):  # rescales nothing
        return f"{name}, {pairs}"
    settings = f"{pairs}, α {arm.config['alpha']:g}, every {arm.config['every']}"
    return f"{name}, {PROTOCOLS.get(arm.protocol, arm.protocol)}: {settings}"


def _protocol_line(protocol: str, arms: Sequence[Arm]) -> str:
    """One sentence on what all guided arms of a protocol share, e.g. "Our settings: schedule cosine, …"."""
    same = [arm for arm in arms if arm.protocol == protocol and "pairs" in method_class(arm.method).needs]
    names = ("schedule", "pair_batch", "margin", "selection")
    values = {name: {str(arm.config[name]) for arm in same} for name in names}
    text = ", ".join(f"{words(name)} {code(*found)}" for name, found in values.items() if len(found) == 1)
    title = PROTOCOLS.get(protocol, protocol)
    return f"{title[0].upper()}{title[1:]}: {text}." if text else ""
