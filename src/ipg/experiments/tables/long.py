"""The page of all results: a table for each study, and one of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipg.evaluation.selection import SELECTIONS
from ipg.experiments.arms import Arm, Figure, Row, Spread, figure_of, spread
from ipg.experiments.tables.rows import MeasuredStudy
from ipg.experiments.tables.text import (
    NAMES,
    NONE,
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
    share,
    short,
    unmeasured_text,
    words,
    wrapped,
)
from ipg.experiments.unified.plan import ceiling_of, sets_apart
from ipg.methods import method_class

__all__ = ["BUILDER", "PAIR_SETTINGS", "results_page", "varying_settings"]

PAIR_SETTINGS = ("pairs", "pair_batch", "margin", "alpha", "tau", "every")
SETTINGS = (
    "data", *PAIR_SETTINGS, "schedule", "selection", "model", "epochs", "batch", "learning_rate", "warmup",
    "class_weighted", "batch_norm", "crop", "decision", "precision", "engine",
)  # fmt: skip
"""What the long tables show of a configuration: a column each where arms differ, else in a line above."""
BUILDER = "pair_builder"
FURTHER = (BUILDER, "size", "optimizer", "weight_decay", "start", "freeze", "flip", "masks", "steps", "normalization")
"""What they show only where arms differ."""


CHOSEN = ("tuned", "decision", "unified", "original")
"""Protocols whose settings were, or may have been, chosen without test images."""


def results_page(studies: Sequence[MeasuredStudy], figures: Sequence[Figure], speed: Sequence[Row]) -> str:
    """The whole page of `results/README.md`."""
    folder = "src/ipg/experiments/studies"
    commands = "\n".join(f"$ ipg study {study.name}{_data_path(study)}" for study in studies)
    parts = [
        "# Results",
        "`<study>/trials.jsonl` has one row per trial, `times/<study>` those of trials run again for their seconds "
        "(`ipg study --timed`), `speed.jsonl` one row per measurement. `python -m "
        "ipg.experiments.table --write README.md` makes this page from them, and the tables of the project's README "
        "and of docs/benchmarks.md, and the summary that comes with the package. A test checks that they match. "
        "Folders that have no section here are of `ipg reproduce NAME`, and docs/results.md shows their rows.",
        "## How to make the rows again",
        f"```console\n{commands}\n$ python -m ipg.experiments.table --write README.md\n```",
        f"`--data-path` names MNIST, as one npz or as the folder of its idx files, or of photographs the folder that "
        f"holds the release, the weights and the pairs: the head of each study file in `{folder}` says how they are "
        "made. A trial that has a row is not run again: give `--results` another folder to repeat it. `ipg study NAME "
        "--list` shows what is done and what is missing. `make bench` measures speed; "
        "`ipg bench --write results/speed.jsonl` keeps what it measures; docs/speed.md shows more.",
    ]
    for study in studies:
        tuned = [arm for other in studies if other.split == "test" for arm in other.arms if arm.protocol in CHOSEN]
        if not any(arm.rows for arm in study.arms):
            parts += [f"## {study.name}", f"No rows yet of {len(study.arms)} settings."]
            continue
        parts += _study(study, figures) if study.split == "test" else _choices(study, tuned)
    if speed:
        parts += _speed(speed)
    return "\n\n".join(part if part.startswith(("#", "|", "```")) else wrapped(part) for part in parts) + "\n"


def _data_path(study: MeasuredStudy) -> str:
    """What the command needs to be told of the data; nothing where they are embedded."""
    if any("mnist" in arm.dataset for arm in study.arms):
        return " --data-path mnist.npz"
    return "" if all(arm.dataset.startswith("colored_fashion") for arm in study.arms) else " --data-path FOLDER"


def _study(study: MeasuredStudy, figures: Sequence[Figure]) -> list[str]:
    varying, shared = varying_settings(study.arms)
    head = ["method", *map(words, varying), "seeds", "accuracy", "last epoch", "group mean", "worst group"]
    head += ["pairs that disagree", "collapsed", "seconds", "paper"]
    lines = []
    for arm in study.arms:
        accuracy, seeds, last, worst, seconds = numbers(arm)
        guided = "pairs" in method_class(arm.method).needs
        figure = figure_of(arm, figures)
        means = [found.mean if (found := arm.spread(name)) else None for name in ("group_mean", "pair_disagreement")]
        lines.append(
            [
                _titled(arm),
                *(
                    str(arm.setting(name)) if guided or name not in (*PAIR_SETTINGS, BUILDER) else NONE
                    for name in varying
                ),
                *(seeds, accuracy, last, share(means[0]), worst, share(means[1])),
                *(str(arm.collapsed) if arm.rows else NONE, seconds),
                f"{figure_text(figure)} (`{figure.table}`)" if figure else NONE,
            ]
        )
    notes = (
        "In percent, mean ± standard deviation over seeds; the group columns are means. *Pairs that disagree*: "
        "held-out pairs whose members are classified differently. *Collapsed*: "
        f"{collapse_text(sum(arm.broke_off for arm in study.arms))}. The paper's column holds mean test accuracies, "
        "named by the label of their table."
    )
    if begun := restarts_text((_titled(arm), arm) for arm in study.arms):
        notes += f" {begun}"
    return [f"## {study.name}", shared, markdown(head, lines), notes, *_ends(study)]


def _choices(study: MeasuredStudy, tuned: Sequence[Arm]) -> list[str]:
    """What settings were chosen from: for each data set, method, protocol and number of pairs, the best arm first.

    Contenders of one method, as a protocol has them, do not compete with each other.
    """
    varying, shared = varying_settings(study.arms)
    several = len({_titled(arm) for arm in study.arms}) > 1
    metric = study.decides or _deciding(study.arms)
    apart = sets_apart(study.name)
    ranked = sorted(study.arms, key=lambda arm: (_rivals(arm, apart), -_mean(arm, metric)))
    ceiling = ceiling_of(study.name)
    above = [arm for arm in ranked if ceiling is not None and _mean(arm, metric) > ceiling]
    highest = _highest([arm for arm in ranked if arm not in above], ranked, apart)
    lines = []
    for arm in ranked:
        marks = ["highest"] if arm in highest else []
        marks += ["above the ceiling"] if arm in above else []
        marks += ["collapsed"] if arm.collapsed else []
        marks += ["taken"] if any(_alike(arm, other) for other in tuned) else []
        disagreement = arm.spread("pair_disagreement")
        lines.append(
            [
                *([_titled(arm)] if several else []),
                *(str(arm.setting(name)) for name in varying),
                *(seeds_text(arm), percent(_worth(arm, metric)), share(disagreement.mean if disagreement else None)),
                *(seconds_text(arm), ", ".join(marks)),
            ]
        )
    what = {"average": "accuracy", "worst_group": "worst group", "pairs": "accuracy × pairs that agree"}[metric]
    head = ["method"] if several else []
    head += [*map(words, varying), "seeds", f"{what} on `{study.split}`", "pairs that disagree", "seconds", ""]
    whose = "contender, of which a method may have several," if apart else "method"
    notes = (
        f"In percent on the split `{study.split}`, mean ± standard deviation over seeds; the test split is not read. "
        f"*Highest*: the highest mean {what} of the {whose} with as many pairs under the same protocol, among "
        "settings that have all their seeds, none collapsed (one class for every image, or broken off)"
        f"{_none_above(ceiling)}. *Taken*: the settings of a study on the test split, whatever ran them."
    )
    return [f"## {study.name}", shared, markdown(head, lines), notes, *_ends(study)]


def _none_above(ceiling: float | None) -> str:
    """Which settings cannot be the highest beside, in words."""
    if ceiling is None:
        return ""
    return (
        f", and that are not above the ceiling of {100 * ceiling:.1f} %: more is had from the shortcut alone, read the "
        "other way round"
    )


def _speed(rows: Sequence[Row]) -> list[str]:
    """The last measurement of each case on each machine; how cost grows has a page and a picture of its own."""
    rows = [row for row in rows if row["benchmark"] != "growth"]
    latest = {(row["hardware"], row["benchmark"], row["case"], row["unit"], row["baseline"]): row for row in rows}
    parts = ["## Speed"]
    for hardware in dict.fromkeys(row["hardware"] for row in latest.values()):
        here = [row for row in latest.values() if row["hardware"] == hardware]
        head = ["benchmark", "case", "median", "quartiles", "baseline", "ratio", "ideal"]
        lines = [
            [
                *(row["benchmark"], row["case"], f"{short(row['value'])} {row['unit']}"),
                f"{short(row['low'])} to {short(row['high'])}" if row.get("low") != row.get("high") else NONE,
                row["baseline"] or NONE,
                NONE if row["ratio"] is None else short(row["ratio"]),
                short(row["ideal"]) if row.get("ideal") else NONE,
            ]
            for row in here
        ]
        parts += [markdown(head, lines, text=2), f"{origin(here)}."]
    parts.append(
        "Cases of one benchmark took turns in one run, so the ratio to the baseline holds where times do not; it is "
        "the median over the rounds. *Ideal*: the paper's `1+2·B_I/B_D` for pair batch B_I and task batch B_D, the "
        "second term divided by `every`."
    )
    return parts


def _ends(study: MeasuredStudy) -> list[str]:
    rows = [row for arm in study.arms for row in arm.rows]
    lines = [f"{origin(rows)}."] if rows else []
    if lost := unmeasured_text((_titled(arm), arm.unmeasured, len(arm.rows)) for arm in study.arms):
        lines.append(lost)
    if study.unknown:
        lines.append(f"Rows that no arm of the study file asks for, left out above: {len(study.unknown)}.")
    return lines


def varying_settings(arms: Sequence[Arm]) -> tuple[list[str], str]:
    """The settings in which arms differ, and a line on those they share."""
    values = {name: {str(arm.setting(name)) for arm in arms} for name in (*SETTINGS, *FURTHER)}
    guided = [arm for arm in arms if "pairs" in method_class(arm.method).needs]
    values[BUILDER] = {found for arm in guided if (found := arm.setting(BUILDER)) is not None}
    varying = [name for name, found in values.items() if len(found) > 1]
    shared = ", ".join(f"{words(name)} {code(*values[name])}" for name in SETTINGS if name not in varying)
    return varying, f"All arms: {shared}."


def _alike(one: Arm, other: Arm) -> bool:
    """Whether two arms have the same settings, whatever engine and precision they ran in."""
    mine, theirs = (
        {name: value for name, value in arm.config.items() if name not in ("engine", "precision")}
        for arm in (one, other)
    )
    return one.method == other.method and mine == theirs


def _highest(honest: Sequence[Arm], ranked: Sequence[Arm], apart: Mapping[str, Sequence[str]]) -> list[Arm]:
    """The first of the honest arms among those that compete, where there are several.

    Those without all their seeds cannot be it, nor those of which a seed collapsed.
    """
    rivals: dict[tuple[Any, ...], list[Arm]] = {}
    for arm in ranked:
        rivals.setdefault(_rivals(arm, apart), []).append(arm)
    able = [arm for arm in honest if len(arm.rows) == len(arm.seeds) and not arm.collapsed]
    whole = ([arm for arm in able if arm in competing] for competing in rivals.values() if len(competing) > 1)
    return [arms[0] for arms in whole if arms]


def _worth(arm: Arm, metric: str) -> Spread | None:
    """What decides between arms, over the seeds."""
    if metric != "pairs":
        return arm.spread(metric)
    rows = [
        {"validation": row["metrics"], "pair_disagreement": row["metrics"]["pair_disagreement"]} for row in arm.rows
    ]
    values = [value for row in rows for value in SELECTIONS["pairs"](row) if value is not None]
    return spread(values) if values and len(values) == len(rows) else None


def _mean(arm: Arm, metric: str) -> float:
    found = _worth(arm, metric)
    return found.mean if found else -1.0


def _deciding(arms: Sequence[Arm]) -> str:
    """The metric by which arms are ranked: the worst group's accuracy where epochs are selected by it."""
    return "worst_group" if all(arm.config["selection"] == "worst_group" for arm in arms) else "average"


def _rivals(arm: Arm, apart: Mapping[str, Sequence[str]]) -> tuple[Any, ...]:
    """What arms have in common that are compared with each other; `apart` sets contenders of one method apart."""
    own = tuple(str(arm.config[name]) for name in apart.get(arm.method, ()))
    return arm.dataset, arm.method, arm.protocol, _order(arm.config["pairs"]), own


def _titled(arm: Arm) -> str:
    """The method of an arm with its own options."""
    return NAMES.get(arm.method, arm.method) + "".join(f", {name} `{value}`" for name, value in arm.options.items())


def _order(pairs: int | str) -> tuple[int, str]:
    """Many pairs before few; files whose number is not known yet come last, by name."""
    return (-pairs, "") if isinstance(pairs, int) else (1, pairs)
