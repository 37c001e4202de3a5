"""The short table of a data set, as the README shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ipg.experiments.arms import Arm, Figure, figure_of
from ipg.experiments.tables.rows import Measured
from ipg.experiments.tables.text import NAMES, PROTOCOLS, code, figure_text, markdown, numbers, origin, words, wrapped
from ipg.methods import method_class
from ipg.methods.options import option_defaults

__all__ = ["dataset_table"]


def dataset_table(dataset: str, studies: Sequence[Measured], figures: Sequence[Figure]) -> str:
    """The table of one data set for readers in a hurry: methods as they are by default, on the test split."""
    arms = [arm for study in studies if study.split == "test" for arm in study.of(dataset) if _is_default(arm)]
    rows = [row for arm in arms for row in arm.rows]
    if not rows:
        return "Not measured yet."
    bounds = {figure.approach: figure for figure in figures if figure.dataset == dataset}
    head = ["", "accuracy", "seeds", "last epoch", "worst group", "seconds", "paper"]
    lines = [[_title(arm), *numbers(arm), figure_text(figure_of(arm, figures))] for arm in arms]
    for name, place in (("Random", 0), ("Optimal", len(lines) + 1)):
        if name in bounds:
            lines.insert(place, [name, *[""] * (len(head) - 2), figure_text(bounds[name])])
    collapses = [f"{_title(arm)}: {arm.collapsed} of {len(arm.rows)}" for arm in arms if arm.collapsed]
    notes = (
        "Test accuracy in percent, mean ± standard deviation over seeds, at the epoch that the selection rule keeps "
        "and at the last. *Worst group*: the mean over seeds of the lowest accuracy among the groups of label and "
        "attribute. *Seconds*: a trial with its evaluations. "
        + " ".join(_protocol_line(name, arms) for name in dict.fromkeys(arm.protocol for arm in arms))
        + f" Seeds that predict one class for every image: {'; '.join(collapses) or 'none'}.",
        f"{origin(rows)}. All arms, how settings were chosen and how to make the rows again: "
        "[results](results/README.md).",
    )
    return "\n\n".join([markdown(head, lines), *map(wrapped, notes)])


def _is_default(arm: Arm) -> bool:
    """Whether the method's own options are what they are when nothing is said."""
    defaults = option_defaults(method_class(arm.method))
    return all(defaults[name] == value for name, value in arm.options.items())


def _title(arm: Arm) -> str:
    name = NAMES.get(arm.method, arm.method)
    if "pairs" not in method_class(arm.method).needs:
        return name
    count = arm.config["pairs"]
    pairs = f"{count:,} pairs" if isinstance(count, int) else f"pairs of {count}"
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
