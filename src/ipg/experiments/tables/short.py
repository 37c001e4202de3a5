"""The short table of a data set, as the README shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipg.evaluation.statistics import wilson
from ipg.experiments.arms import Arm, Figure, figure_of
from ipg.experiments.tables.rows import MeasuredStudy
from ipg.experiments.tables.text import (
    NAMES,
    NONE,
    PROTOCOLS,
    REDERIVED,
    code,
    collapse_text,
    figure_text,
    markdown,
    numbers,
    origin,
    percent,
    restarts_text,
    seconds_text,
    seeds_text,
    unmeasured_text,
    words,
    wrapped,
)
from ipg.methods import method_class
from ipg.methods.options import option_defaults

__all__ = ["SUBSET", "beside", "dataset_table", "photographs_table"]

SUBSET = "_subset"
"""How data sets end that hold a part of one of the paper's."""
_BUILT = {"counterparts": "real ", "background": "composed ", "matched": "matched ", "random": "random "}
"""Where pairs of photographs come from, by their builder."""
_SHARED = ("epochs", "batch", "learning_rate", "schedule", "crop", "pair_batch", "margin", "selection")
"""Settings that the page tells once for all arms of a protocol that agree in them."""
_APART = ("unified", "repair")
"""Protocols that have a table of their own."""


def dataset_table(dataset: str, studies: Sequence[MeasuredStudy], figures: Sequence[Figure]) -> str:
    """The table of one data set for readers in a hurry: methods as they are by default, on the test split."""
    told = [arm for study in studies if study.split == "test" for arm in study.of(dataset)]
    arms = [arm for arm in told if arm.protocol not in _APART and _is_default(arm)]
    if not any(arm.rows for arm in arms):
        return "Not measured yet."
    if all(arm.config["selection"] == "worst_group" for arm in arms):
        plain_first = sorted(arms, key=lambda arm: (_moves(arm), "pairs" in method_class(arm.method).needs))
        return photographs_table(plain_first, figures)
    bounds = {figure.approach: figure for figure in figures if figure.dataset == dataset}
    head = ["", "accuracy", "seeds", "last epoch", "worst group", "seconds", "paper"]
    titles = _titles(arms)
    lines = [
        [title, *numbers(arm), figure_text(figure_of(arm, figures))] for title, arm in zip(titles, arms, strict=True)
    ]
    for name, place in (("Random", 0), ("Optimal", len(lines) + 1)):
        if name in bounds:
            lines.insert(place, [name, *[""] * (len(head) - 2), figure_text(bounds[name])])
    return _page(head, lines, arms, titles)


def photographs_table(arms: Sequence[Arm], figures: Sequence[Figure]) -> str:
    """The table of arms that are judged by their worst group."""
    arms = [arm for arm in arms if arm.rows]
    if not arms:
        return "Not measured yet."
    titles = _titles(arms, photographs=True)
    networks = {str(arm.config["model"] or arm.rows[0]["config"]["model"]) for arm in arms}
    told = [beside(arm, figures) for arm in arms]
    head = ["", "worst group", "interval", "seeds", "average", "worst group, last epoch", "seconds"]
    lines = [
        [
            title,
            percent(arm.spread("worst_group")),
            _interval(arm),
            seeds_text(arm),
            percent(arm.spread()),
            percent(arm.spread("worst_group", last=True)),
            seconds_text(arm),
        ]
        for title, arm in zip(titles, arms, strict=True)
    ]
    if any(told):
        head.append("paper, ResNet-50" + (", all data" if arms[0].dataset.endswith(SUBSET) else ""))
        lines = [[*line, figure_text(figure)] for line, figure in zip(lines, told, strict=True)]
    network = f"Network: {' and '.join(map(code, sorted(networks)))}, where the paper has ResNet-50."
    return _page(head, lines, arms, titles, network)


def _page(
    head: Sequence[str], lines: Sequence[Sequence[str]], arms: Sequence[Arm], titles: Sequence[str], network: str = ""
) -> str:
    """The table, and beneath it what its arms share and where its rows come from; the page says what columns are."""
    settings = _told({protocol: _settings(protocol, arms) for protocol in dict.fromkeys(arm.protocol for arm in arms)})
    named = list(zip(titles, arms, strict=True))
    collapses = [f"{title}: {arm.collapsed} of {len(arm.rows)}" for title, arm in named if arm.collapsed]
    meaning = collapse_text(sum(arm.broke_off for arm in arms)).capitalize()
    collapsed = f"{meaning}: {'; '.join(collapses) or 'none'}."
    lost = unmeasured_text((title, arm.unmeasured, len(arm.rows)) for title, arm in named)
    begun = restarts_text(named)
    told = [network, *settings, collapsed, begun, lost, f"{origin([row for arm in arms for row in arm.rows])}."]
    return "\n\n".join([markdown(head, lines), wrapped(" ".join(part for part in told if part))])


def beside(arm: Arm, figures: Sequence[Figure]) -> Figure | None:
    """What the paper has for the method's worst group with as many pairs, or the one figure that it has."""
    if arm.config["start"] is not None or (arm.method == "erm" and arm.config["class_weighted"]):
        return None
    name = NAMES.get(arm.method, arm.method).removesuffix(REDERIVED)
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
    known = wilson(found.mean * min(counts), min(counts))
    return f"{100 * known.low:.0f} to {100 * known.high:.0f}"


def _moves(arm: Arm) -> bool:
    """Whether the line between classes was drawn on validation images."""
    return bool(arm.config["decision"] != "argmax")


def _is_default(arm: Arm) -> bool:
    """Whether the method's own options are what they are when nothing is said."""
    defaults = option_defaults(method_class(arm.method))
    return all(defaults[name] == value for name, value in arm.options.items())


def _titles(arms: Sequence[Arm], *, photographs: bool = False) -> list[str]:
    """The arms in words; those that would read alike say by whose settings they are, or in which they differ."""
    titles = [_title(arm, photographs=photographs) for arm in arms]
    told = []
    for title, arm in zip(titles, arms, strict=True):
        alike = [other for other, name in zip(arms, titles, strict=True) if name == title]
        same = [other for other in alike if other.protocol == arm.protocol]
        whose = [PROTOCOLS.get(arm.protocol, arm.protocol)] if len(same) < len(alike) else []
        told.append(", ".join([title, *whose, *_differing(arm, same)]))
    return told


def _differing(arm: Arm, among: Sequence[Arm]) -> list[str]:
    """The settings of an arm in which not all of `among` agree, in words."""
    names = [name for name in _SHARED if len({str(other.config[name]) for other in among}) > 1]
    return [_setting(name, str(arm.config[name])) for name in names]


def _title(arm: Arm, *, photographs: bool = False) -> str:
    """The arm in words; of photographs it tells as well how classes are weighted and where pairs come from."""
    name = NAMES.get(arm.method, arm.method)
    if "pairs" not in method_class(arm.method).needs:
        name += ", class-weighted" if photographs and arm.config["class_weighted"] else ""
        name += f", {arm.config['epochs']} epochs more" if arm.config["start"] is not None else ""
        return name + (", line moved" if _moves(arm) else "")
    count = arm.config["pairs"]
    kind = _BUILT.get(str(arm.rows[0]["config"].get("pair_builder")), "") if photographs else ""
    pairs = f"{count:,} {kind}pairs" if isinstance(count, int) else f"pairs of {count}"
    if arm.method not in ("ipg", "continuous"):  # rescales nothing
        return f"{name}, {pairs}"
    settings = f"{pairs}, α {arm.config['alpha']:g}, every {arm.config['every']}"
    return f"{name}, {PROTOCOLS.get(arm.protocol, arm.protocol)}: {settings}"


def _told(settings: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What the arms of each protocol share, in sentences; first what is the same for all."""
    told = {PROTOCOLS.get(protocol, protocol): found for protocol, found in settings.items() if found}
    first = next(iter(told.values()), {})
    common = {name: text for name, text in first.items() if all(other.get(name) == text for other in told.values())}
    if len(told) < 2 or len(common) < 2:
        common = {}
    apart: dict[str, list[str]] = {}
    for title, found in told.items():
        apart.setdefault(", ".join(text for name, text in found.items() if name not in common), []).append(title)
    together = [f"All guided rows: {', '.join(common.values())}."] if common else []
    return together + [_sentence(f"{', and '.join(titles)}: {text}") for text, titles in apart.items() if text]


def _settings(protocol: str, arms: Sequence[Arm]) -> dict[str, str]:
    """What all guided arms of a protocol share, by name, as the page says it; nothing where there are none."""
    same = [arm for arm in arms if arm.protocol == protocol and "pairs" in method_class(arm.method).needs]
    found = {
        name: str(next(iter(values))) for name in _SHARED if len(values := {arm.config[name] for arm in same}) == 1
    }
    if found.get("crop") == "1.0":  # none
        del found["crop"]
    return {name: _setting(name, value) for name, value in found.items()}


def _setting(name: str, value: str) -> str:
    """A setting as the page says it."""
    return f"{value} epochs" if name == "epochs" else f"{words(name)} {code(value)}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
