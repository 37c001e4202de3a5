"""How the tables of the results write names, numbers and where rows come from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ipg.experiments.arms import Arm, Figure, Row, Spread

__all__ = [
    "NAMES", "NONE", "PROTOCOLS", "REDERIVED", "code", "collapse_text", "commit_text", "commits_text", "figure_text",
    "markdown", "numbers", "origin", "percent", "restarts_text", "seconds_text", "seeds_of", "seeds_text", "share",
    "short", "unmeasured_text", "words", "wrapped",
]  # fmt: skip

REDERIVED = " (re-derived)"
"""Behind the name of a method whose authors' own form is not public."""
NAMES = {
    "erm": "ERM",
    "oracle": "ERM on grayscale (oracle)",
    "ipg": "IPG",
    "joint": "Joint Optimization",
    "continuous": "Continuous Correction",
    "groupdro": "GroupDRO",
    "rwg": "RWG",
    "subg": "SUBG",
    "pair_augmentation": "Pair augmentation",
    "pair_contrastive": "Pair-contrastive",
    "joint_weighted": "Joint with weight",
    "ncm": "NCM",
    "dair": "DAIR",
    "shape_only": "Shape-only",
    "jtt": "JTT",
    "dfr": "DFR",
    "lff": "LfF",
    "eva_e": f"EvA-E{REDERIVED}",
    "dkt": f"DKT{REDERIVED}",
    "epg": "EPG",
    "gals": "GALS",
    "gals_mask": "GALS (masks)",
    "vrex": "V-REx",
    "irm": "IRM",
    "meta_irm": "meta-IRM",
    "fishr": "Fishr",
    "coral": "CORAL",
    "ridg": "RIDG",
    "cggd": "CGGD",
}
"""Methods as the tables call them; others by their own name."""
PROTOCOLS = {
    "paper": "paper's settings",
    "tuned": "our settings",
    "bf16": "paper's settings in bf16, compiled",
    "decision": "our settings, line moved",
    "ours": "fewer corrections",
    "repair": "repaired",
    "restarts": "begun again where collapsed",
}
NONE = "–"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """A Markdown table; the first `text` columns lean left, the others right."""
    rule = ["---" if place < text else "---:" for place in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def wrapped(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, width=120, break_long_words=False, break_on_hyphens=False)


def percent(values: Spread | None) -> str:
    """Mean and standard deviation in per cent."""
    if values is None:
        return NONE
    return f"{100 * values.mean:.1f}" + ("" if values.deviation is None else f" ± {100 * values.deviation:.1f}")


def share(value: float | None) -> str:
    """A fraction in per cent."""
    return NONE if value is None else f"{100 * value:.1f}"


def figure_text(figure: Figure | None) -> str:
    """A figure of the paper's, as it stands there."""
    if figure is None:
        return NONE
    return f"{figure.mean:.1f}" + ("" if figure.spread is None else f" ± {figure.spread:.1f}")


def seeds_text(arm: Arm) -> str:
    """The seeds of an arm."""
    return seeds_of(len(arm.rows), len(arm.seeds))


def seeds_of(there: int, asked: int) -> str:
    """How many seeds there are, and of how many where some are missing."""
    return str(there) if there == asked else f"{there} of {asked}"


def seconds_text(arm: Arm) -> str:
    """The median seconds of a trial."""
    return NONE if arm.seconds is None else f"{arm.seconds:.1f}"


def collapse_text(broke_off: int) -> str:
    """Which seeds count as collapsed, so many of them having broken off."""
    return "seeds that predict one class for every image" + (", or whose training broke off" if broke_off else "")


def restarts_text(named: Iterable[tuple[str, Arm]]) -> str:
    """A sentence on the seeds that collapsed and began again, from (title, arm); none without them."""
    told = [
        f"{title}: {len(rates)} of {len(arm.rows)} (last with {', '.join(f'{rate:g}' for rate in sorted(set(rates)))})"
        for title, arm in named
        if (rates := arm.begun_again)
    ]
    begun = "Seeds that collapsed and began again, each time with half the learning rate"
    return f"{begun}: {'; '.join(told)}." if told else ""


def unmeasured_text(counts: Iterable[tuple[str, int, int]]) -> str:
    """A sentence on the seeds that nothing could be measured of, from (title, so many, of seeds); none without them."""
    told = "; ".join(f"{title}: {lost} of {seeds}" for title, lost, seeds in counts if lost)
    return f"No figure where a seed broke off before there was a network to measure: {told}." if told else ""


def short(number: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def words(name: str) -> str:
    """The name of a setting as people say it."""
    return name.replace("_", " ")


def code(value: str) -> str:
    """A number as it is, anything else as code."""
    return value if re.fullmatch(r"[\d.e-]+", value) else f"`{value}`"


def _all_of(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))


def origin(rows: Sequence[Row]) -> str:
    """Hardware, versions and commits of `rows`, in words."""
    versions: list[Mapping[str, Any]] = [row["versions"] for row in rows]
    return (
        f"{_all_of(row['hardware'] for row in rows)}; torch {_all_of(found['torch'] for found in versions)}, "
        f"Python {_all_of(found['python'] for found in versions)}; commit {commits_text(rows)}"
    )


def commits_text(rows: Sequence[Row]) -> str:
    """The commits of `rows`, the first first."""
    return _all_of(commit_text(row["commit"]) for row in sorted(rows, key=lambda row: str(row["date"])))


def commit_text(name: str | None) -> str:
    """A commit by its first letters."""
    digest, _, state = (name or "unknown").partition("-")
    return f"`{digest[:7]}{'-' if state else ''}{state}`"


def numbers(arm: Arm) -> list[str]:
    """Accuracy, seeds, accuracy at the last epoch, worst group and seconds of an arm."""
    worst = arm.spread("worst_group")
    return [
        percent(arm.spread()),
        seeds_text(arm),
        percent(arm.spread(last=True)),
        share(worst.mean if worst else None),
        seconds_text(arm),
    ]
