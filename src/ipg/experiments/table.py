"""The tables of the results, made from the rows in `results/` and the paper's figures. No number is typed by hand.

    python -m ipg.experiments.table --write README.md    # what stands between its markers, and results/README.md
    python -m ipg.experiments.table --check README.md    # exits 1 where a page is not what the rows give

A page says where a table goes by `<!-- results:colored_mnist -->` and `<!-- /results:colored_mnist -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipg.experiments.arms import Arm, Figure, Row, Spread, arms_of, figure_of, published
from ipg.experiments.runner import read_rows
from ipg.experiments.study import load_study
from ipg.files import write_text
from ipg.methods import method_class
from ipg.methods.options import option_defaults

__all__ = ["Measured", "dataset_table", "fill", "markdown", "measured", "origin", "results_page", "short"]

STUDIES = Path(__file__).with_name("studies")
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
    "dair": "DAIR",
    "jtt": "JTT",
    "dfr": "DFR",
    "lff": "LfF",
    "vrex": "V-REx",
    "irm": "IRM",
    "fishr": "Fishr",
    "coral": "CORAL",
    "ridg": "RIDG",
    "cggd": "CGGD",
}
"""Methods as the tables call them; others by their own name."""
PROTOCOLS = {"paper": "paper's settings", "tuned": "our settings", "bf16": "paper's settings in bf16, compiled"}
PAIR_SETTINGS = ("pairs", "pair_batch", "margin", "alpha", "every")
SETTINGS = (
    "data", *PAIR_SETTINGS, "schedule", "selection", "model", "epochs", "batch", "learning_rate", "warmup",
    "class_weighted", "batch_norm", "crop", "precision", "engine",
)  # fmt: skip
"""What the long tables show of a configuration: a column each where arms differ, else in a line above."""
NONE = "–"


class Measured:
    """A study and what was measured of it."""

    def __init__(self, name: str, split: str, arms: Sequence[Arm], unknown: Sequence[Row]) -> None:
        self.name, self.split, self.arms, self.unknown = name, split, arms, unknown

    def of(self, dataset: str) -> list[Arm]:
        """The arms on one data set."""
        return [arm for arm in self.arms if arm.dataset == dataset]


def measured(results: Path, studies: Path = STUDIES) -> list[Measured]:
    """Every study that has a file in `studies`, with its rows in `results`."""
    found = []
    for file in sorted(studies.glob("*.toml")):
        study = load_study(file)
        arms, unknown = arms_of(study, read_rows(results / study.name / "trials.jsonl"))
        found.append(Measured(study.name, study.metrics_split, arms, unknown))
    return found


# -- the short table of the README -------------------------------------------------------------------------------------


def dataset_table(dataset: str, studies: Sequence[Measured], figures: Sequence[Figure]) -> str:
    """The table of one data set for readers in a hurry: methods as they are by default, on the test split."""
    arms = [arm for study in studies if study.split == "test" for arm in study.of(dataset) if _is_default(arm)]
    rows = [row for arm in arms for row in arm.rows]
    if not rows:
        return "Not measured yet."
    bounds = {figure.approach: figure for figure in figures if figure.dataset == dataset}
    head = ["", "accuracy", "seeds", "last epoch", "worst group", "seconds", "paper"]
    lines = [[_title(arm), *_numbers(arm), _figure(figure_of(arm, figures))] for arm in arms]
    for name, place in (("Random", 0), ("Optimal", len(lines) + 1)):
        if name in bounds:
            lines.insert(place, [name, *[""] * (len(head) - 2), _figure(bounds[name])])
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
    return "\n\n".join([markdown(head, lines), *map(_wrapped, notes)])


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
    text = ", ".join(f"{_words(name)} {_code(*found)}" for name, found in values.items() if len(found) == 1)
    title = PROTOCOLS.get(protocol, protocol)
    return f"{title[0].upper()}{title[1:]}: {text}." if text else ""


def _numbers(arm: Arm) -> list[str]:
    worst = arm.spread("worst_group")
    return [
        _percent(arm.spread()),
        _seeds(arm),
        _percent(arm.spread(last=True)),
        _share(worst.mean if worst else None),
        NONE if arm.seconds is None else f"{arm.seconds:.1f}",
    ]


# -- the long tables ---------------------------------------------------------------------------------------------------


def results_page(studies: Sequence[Measured], figures: Sequence[Figure], speed: Sequence[Row]) -> str:
    """The whole page of `results/README.md`."""
    folder = "src/ipg/experiments/studies"
    commands = "\n".join(
        f"$ python -m ipg.experiments.runner {folder}/{study.name}.toml"
        + (" --data-path mnist.npz" if any("mnist" in arm.dataset for arm in study.arms) else "")
        for study in studies
    )
    parts = [
        "# Results",
        "A row a trial in `<study>/trials.jsonl`, a row a measurement in `speed.jsonl`. This page and the table of the "
        "project's README are made from them by `python -m ipg.experiments.table --write README.md`, and a test checks "
        "that they are.",
        "## How to make the rows again",
        f"```console\n{commands}\n$ python -m ipg.experiments.table --write README.md\n```",
        "`--data-path` names MNIST, as one npz or as the folder of its idx files. A trial that has a row is not run "
        "again: give `--results` another folder to repeat it. `make bench` measures speed; "
        "`ipg bench --write results/speed.jsonl` keeps what it measures; docs/speed.md shows more.",
    ]
    for study in studies:
        tuned = [arm for other in studies if other.split == "test" for arm in other.arms if arm.protocol == "tuned"]
        parts += _study(study, figures) if study.split == "test" else _choices(study, tuned)
    if speed:
        parts += _speed(speed)
    return "\n\n".join(part if part.startswith(("#", "|", "```")) else _wrapped(part) for part in parts) + "\n"


def _study(study: Measured, figures: Sequence[Figure]) -> list[str]:
    varying, shared = _settings(study.arms)
    head = ["method", *map(_words, varying), "seeds", "accuracy", "last epoch", "group mean", "worst group"]
    head += ["pairs that disagree", "collapsed", "seconds", "paper"]
    lines = []
    for arm in study.arms:
        accuracy, seeds, last, worst, seconds = _numbers(arm)
        guided = "pairs" in method_class(arm.method).needs
        figure = figure_of(arm, figures)
        means = [found.mean if (found := arm.spread(name)) else None for name in ("group_mean", "pair_disagreement")]
        lines.append(
            [
                NAMES.get(arm.method, arm.method)
                + "".join(f", {name} `{value}`" for name, value in arm.options.items()),
                *(str(arm.config[name]) if guided or name not in PAIR_SETTINGS else NONE for name in varying),
                *(seeds, accuracy, last, _share(means[0]), worst, _share(means[1])),
                *(str(arm.collapsed) if arm.rows else NONE, seconds),
                f"{_figure(figure)} (`{figure.table}`)" if figure else NONE,
            ]
        )
    notes = (
        "In percent, mean ± standard deviation over seeds; the group columns are means. *Pairs that disagree*: "
        "held-out pairs whose members are classified differently. *Collapsed*: seeds that predict one class for every "
        "image. The paper's column holds mean test accuracies, named by the label of their table."
    )
    return [f"## {study.name}", shared, markdown(head, lines), notes, *_ends(study)]


def _choices(study: Measured, tuned: Sequence[Arm]) -> list[str]:
    """What settings were chosen from: for each data set and number of pairs the arms, the highest accuracy first."""
    varying, shared = _settings(study.arms)
    metric = _deciding(study.arms)
    ranked = sorted(study.arms, key=lambda arm: (arm.dataset, _order(arm.config["pairs"]), -_mean(arm, metric)))
    highest = {(arm.dataset, arm.config["pairs"]): arm for arm in reversed(ranked) if arm.rows}
    lines = []
    for arm in ranked:
        marks = ["highest"] if highest.get((arm.dataset, arm.config["pairs"])) is arm else []
        marks += ["taken"] if any(_same_settings(arm, other) for other in tuned) else []
        disagreement = arm.spread("pair_disagreement")
        lines.append(
            [
                *(str(arm.config[name]) for name in varying),
                *(_seeds(arm), _percent(arm.spread(metric)), _share(disagreement.mean if disagreement else None)),
                *(NONE if arm.seconds is None else f"{arm.seconds:.1f}", ", ".join(marks)),
            ]
        )
    what = {"average": "accuracy", "worst_group": "worst group"}[metric]
    head = [*map(_words, varying), "seeds", f"{what} on `{study.split}`", "pairs that disagree", "seconds", ""]
    notes = (
        f"In percent on the split `{study.split}`, mean ± standard deviation over seeds; the test split is not read. "
        f"*Highest*: the highest mean {what} with as many pairs. *Taken*: the settings of a study on the test split. "
        "The study file says what decides."
    )
    return [f"## {study.name}", shared, markdown(head, lines), notes, *_ends(study)]


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


def _ends(study: Measured) -> list[str]:
    rows = [row for arm in study.arms for row in arm.rows]
    lines = [f"{origin(rows)}."] if rows else []
    if study.unknown:
        lines.append(f"Rows that no arm of the study file asks for, left out above: {len(study.unknown)}.")
    return lines


def _settings(arms: Sequence[Arm]) -> tuple[list[str], str]:
    """The settings in which arms differ, and a line on those they share."""
    values = {name: {str(arm.config.get(name)) for arm in arms} for name in SETTINGS}
    varying = [name for name, found in values.items() if len(found) > 1]
    shared = ", ".join(f"{_words(name)} {_code(*found)}" for name, found in values.items() if len(found) == 1)
    return varying, f"All arms: {shared}."


def _same_settings(one: Arm, other: Arm) -> bool:
    return one.method == other.method and one.config == other.config


def _mean(arm: Arm, metric: str) -> float:
    found = arm.spread(metric)
    return found.mean if found else -1.0


def _deciding(arms: Sequence[Arm]) -> str:
    """The metric by which arms are ranked: the worst group's accuracy where epochs are selected by it."""
    return "worst_group" if all(arm.config["selection"] == "worst_group" for arm in arms) else "average"


def _order(pairs: int | str) -> tuple[int, str]:
    """Many pairs before few; files whose number is not known yet come last, by name."""
    return (-pairs, "") if isinstance(pairs, int) else (1, pairs)


# -- words and numbers -------------------------------------------------------------------------------------------------


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """A Markdown table; the first `text` columns lean left, the others right."""
    rule = ["---" if place < text else "---:" for place in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width=120, break_long_words=False, break_on_hyphens=False)


def _percent(values: Spread | None) -> str:
    if values is None:
        return NONE
    return f"{100 * values.mean:.1f}" + ("" if values.deviation is None else f" ± {100 * values.deviation:.1f}")


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return NONE
    return f"{figure.mean:.1f}" + ("" if figure.spread is None else f" ± {figure.spread:.1f}")


def _seeds(arm: Arm) -> str:
    """How many seeds there are, and of how many where some are missing."""
    return str(len(arm.rows)) if len(arm.rows) == len(arm.seeds) else f"{len(arm.rows)} of {len(arm.seeds)}"


def short(number: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _code(value: str) -> str:
    return value if re.fullmatch(r"[\d.e-]+", value) else f"`{value}`"


def origin(rows: Sequence[Row]) -> str:
    """Hardware, versions and commits of `rows`, in words."""

    def all_of(values: Iterable[str]) -> str:
        return " and ".join(dict.fromkeys(values))

    commits = [_commit(row["commit"]) for row in sorted(rows, key=lambda row: str(row["date"]))]
    versions: list[Mapping[str, Any]] = [row["versions"] for row in rows]
    return (
        f"{all_of(row['hardware'] for row in rows)}; torch {all_of(found['torch'] for found in versions)}, "
        f"Python {all_of(found['python'] for found in versions)}; commit {all_of(commits)}"
    )


def _commit(name: str | None) -> str:
    digest, _, state = (name or "unknown").partition("-")
    return f"`{digest[:7]}{'-' if state else ''}{state}`"


# -- the pages ---------------------------------------------------------------------------------------------------------


def fill(page: str, tables: Mapping[str, str]) -> str:
    """`page` with what stands between the markers of each data set in `tables` replaced.

    Raises:
        ValueError: a marker is missing, or a data set has markers and no table.
    """
    for dataset in {*tables, *re.findall(r"<!-- results:(\w+) -->", page)}:
        start, end = f"<!-- results:{dataset} -->", f"<!-- /results:{dataset} -->"
        if dataset not in tables:
            raise ValueError(f"the page has a place for {dataset!r}, of which there is no study")
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for {dataset!r}; put {start} and {end} where it goes")
        page = f"{before}{start}\n{tables[dataset]}\n{end}{after}"
    return page


def _pages(readme: Path, results: Path, studies: Path) -> dict[Path, str]:
    """Every page that is made from rows, as it should be."""
    known, figures = measured(results, studies), published()
    text = readme.read_text(encoding="utf-8")
    datasets = {arm.dataset for study in known for arm in study.arms}
    wanted = [dataset for dataset in re.findall(r"<!-- results:(\w+) -->", text) if dataset in datasets]
    if not wanted:
        raise ValueError(f"{readme} has no place for a table; put <!-- results:DATASET --> and its end where one goes")
    tables = {dataset: dataset_table(dataset, known, figures) for dataset in wanted}
    speed = read_rows(results / "speed.jsonl")
    return {readme: fill(text, tables), results / "README.md": results_page(known, figures, speed)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(prog="ipg.experiments.table", description="Make the tables of the results.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="README", help="fill in this page, and write results/README.md")
    what.add_argument("--check", type=Path, metavar="README", help="exit 1 where a page is not what the rows give")
    parser.add_argument("--results", type=Path, help="folder of the rows; results beside the page where not given")
    parser.add_argument("--studies", type=Path, default=STUDIES, help="folder of the study files")
    given = parser.parse_args(arguments)
    readme: Path = given.write or given.check
    try:
        pages = _pages(readme, given.results or readme.parent / "results", given.studies)
    except (OSError, ValueError) as error:
        print(f"ipg.experiments.table: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if given.write:
        for path in stale:
            write_text(path, pages[path])
            print(f"{path}: written")
        return 0
    for path in stale:
        print(
            f"{path} is not what the rows give; run python -m ipg.experiments.table --write {readme}", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
