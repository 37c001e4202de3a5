"""Write the two studies of the unified protocol: what is chosen from, and what was chosen.

    python -m ipg.experiments.unified tuning colored_mnist    # colored_mnist_unified_tuning.toml, for `ipg study`
    python -m ipg.experiments.unified freeze colored_mnist    # colored_mnist_unified.toml, from its rows

Rows of the first hold no test images; the second is to be committed before the first of its rows is made.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ipg.config import ConfigError
from ipg.evaluation.selection import SELECTIONS
from ipg.experiments.arms import Arm, Row, went_wrong
from ipg.experiments.search.result import toml_value
from ipg.experiments.study import STUDIES, load_study
from ipg.experiments.tables.rows import measured_of
from ipg.experiments.tables.text import origin
from ipg.experiments.unified.plan import Contender, Protocol, configurations, load_protocol
from ipg.files import write_text

__all__ = ["Candidates", "best_of", "candidates_of", "frozen_text", "main", "tuning_text", "worth"]

COMMAND = "python -m ipg.experiments.unified"
RULES = {
    "search": "accuracy on the split search",
    "training_environments": "mean accuracy over the training environments on validation images",
    "worst_group": "accuracy of the worst group of the validation images (of equal ones the mean of the groups)",
    "pairs": "balanced validation accuracy times the share of held-out pairs that agree",
}
"""What decides, in words."""


@dataclass(frozen=True)
class Candidates:
    """The configurations of a contender, and the rows there are of them, in the same order."""

    contender: Contender
    configs: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]

    @property
    def missing(self) -> int:
        """How many have no row."""
        return len(self.configs) - len(self.rows)


def tuning_text(protocol: Protocol) -> str:
    """The study of all configurations of all contenders."""
    count = protocol.configurations
    notes = [
        protocol.about,
        f"Written by `{COMMAND} tuning {protocol.dataset}`. Every method has {count} configurations and one seed: its "
        f"defaults, and others drawn at random, by the seed and the method's name, from the space that `ipg search` "
        f"looks in or from what protocol.toml has in its place; fewer where the space has fewer. All else is shared. "
        f"Decides: {RULES[protocol.rule]} at the kept epoch; the test split is not read.",
    ]
    arms = [
        _arm(contender.method, "tuning", config)
        for contender in protocol.contenders
        for config in configurations(protocol, contender)
    ]
    return _study(protocol, notes, [protocol.seed], arms, split=protocol.split)


def frozen_text(protocol: Protocol, found: Sequence[Candidates]) -> str:
    """The study of what was chosen; contenders of which rows are missing are left out, and named.

    Raises:
        ValueError: there is no contender whose rows are all there.
    """
    whole = [candidates for candidates in found if not candidates.missing]
    if not whole:
        raise ValueError(f"no method has all of its rows of {protocol.tuning}: {_remedy(protocol)}")
    rows = [row for candidates in whole for row in candidates.rows]
    notes = [
        protocol.about,
        f"Written by `{COMMAND} freeze {protocol.dataset}` from the rows of {protocol.tuning}.toml: of every method "
        f"the configuration with the highest {RULES[protocol.rule]}, of equal ones the first; runs that broke off or "
        f"give every image one class{_above(protocol)} come last. The test split had no part in it.",
        f"{origin(rows)}.",
    ]
    if left := [candidates.contender.title for candidates in found if candidates.missing]:
        notes.append(f"Left out, since rows were missing: {', '.join(left)}.")
    return _study(protocol, notes, protocol.seeds, [_chosen(protocol, candidates) for candidates in whole])


def candidates_of(protocol: Protocol, results: Path, studies: Path = STUDIES) -> list[Candidates]:
    """What each contender was given, with the rows in `results`.

    Raises:
        ConfigError: the study that rows were made for is not that of the protocol.
        ValueError: a row is damaged or does not say where it comes from.
    """
    file = studies / f"{protocol.tuning}.toml"
    study = load_study(file)
    if file.read_text(encoding="utf-8") != tuning_text(protocol):
        raise ConfigError(
            [f"{file} is not what the protocol gives; write it with `{COMMAND} tuning {protocol.dataset}`"]
        )
    arms = iter(measured_of(study, results / study.name / "trials.jsonl").arms)
    return [_candidates(contender, configurations(protocol, contender), arms) for contender in protocol.contenders]


def best_of(rule: str, rows: Sequence[Row], ceiling: float | None = None) -> int:
    """The place of the best row by the rule; of equal ones the first.

    A run that went wrong is worth less than any, and so is one above the ceiling.
    """

    def value(row: Row) -> tuple[float, ...]:
        found = worth(rule, row)
        return (not went_wrong(row) and (ceiling is None or found[0] <= ceiling), *found)

    values = [value(row) for row in rows]
    return values.index(max(values))


def worth(rule: str, row: Row) -> tuple[float, ...]:
    """What a row's network is worth by the rule, on the split that the row tells of; what was not measured is -1."""
    metrics = row["metrics"]
    values: tuple[float | None, ...] = (metrics["average"],)
    if rule != "search":
        values = SELECTIONS[rule]({"validation": metrics, "pair_disagreement": metrics["pair_disagreement"]})
    return tuple(-1.0 if value is None else value for value in values)


def _candidates(contender: Contender, configs: Sequence[Mapping[str, Any]], arms: Iterator[Arm]) -> Candidates:
    """The next of the study's arms, which are in the order of the contenders; each has one seed."""
    return Candidates(contender, configs, [row for arm in islice(arms, len(configs)) for row in arm.rows])


def _chosen(protocol: Protocol, candidates: Candidates) -> str:
    """The best configuration of a contender as an arm, with what it was worth."""
    number = best_of(protocol.rule, candidates.rows, protocol.ceiling)
    value = worth(protocol.rule, candidates.rows[number])[0]
    note = f"# configuration {number + 1} of {len(candidates.rows)}: {value:.4f}"
    return f"{note}\n{_arm(candidates.contender.method, 'unified', candidates.configs[number])}"


def _complete(protocol: Protocol, found: Sequence[Candidates]) -> None:
    """Refuse to choose where rows are missing."""
    lacking = [f"{c.contender.title} ({c.missing} of {len(c.configs)})" for c in found if c.missing]
    if lacking:
        raise ValueError(f"rows of {protocol.tuning} are missing of {', '.join(lacking)}: {_remedy(protocol)}")


def _above(protocol: Protocol) -> str:
    """What else comes last, in words."""
    return "" if protocol.ceiling is None else f" or are above {protocol.ceiling:.2f}, which takes the shortcut,"


def _remedy(protocol: Protocol) -> str:
    return f"run `ipg study {protocol.tuning}`, or leave methods out with --partial"


def _study(
    protocol: Protocol, notes: Sequence[str], seeds: int | list[int], arms: Sequence[str], *, split: str | None = None
) -> str:
    """A study file."""
    head = "\n#\n".join(textwrap.fill(note, 120, initial_indent="# ", subsequent_indent="# ") for note in notes)
    top = {"dataset": protocol.dataset, **({"metrics_split": split} if split else {}), "seeds": seeds}
    parts = ["\n".join([head, *_lines(top)]), "\n".join(["[base]", *_lines(protocol.base)]), *arms]
    return "\n\n".join(parts) + "\n"


def _arm(method: str, protocol: str, config: Mapping[str, Any]) -> str:
    values = {"method": method, "protocol": protocol, **({"config": config} if config else {})}
    return "\n".join(["[[arm]]", *_lines(values)])


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in values.items()]


def _toml(value: Any) -> str:
    """A value as TOML, tables in a line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_lines(value)) + " }"
    return toml_value(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a study file from the command line."""
    parser = argparse.ArgumentParser(prog="ipg.experiments.unified", description="Write studies of one protocol.")
    commands = parser.add_subparsers(dest="command", required=True)
    tuning = commands.add_parser("tuning", help="the study that settings are chosen from")
    freeze = commands.add_parser("freeze", help="the study of the settings that were chosen")
    for command in (tuning, freeze):
        command.add_argument("dataset", help="data set")
        command.add_argument("--studies", type=Path, default=STUDIES, help="folder of the study files")
    freeze.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows, one for each study")
    freeze.add_argument("--partial", action="store_true", help="leave out methods whose rows are not all there")
    given = parser.parse_args(arguments)
    try:
        protocol = load_protocol(given.dataset)
        if given.command == "tuning":
            name, text = protocol.tuning, tuning_text(protocol)
        else:
            found = candidates_of(protocol, given.results, given.studies)
            if not given.partial:
                _complete(protocol, found)
            name, text = protocol.frozen, frozen_text(protocol, found)
        print(f"{write_text(given.studies / f'{name}.toml', text)}: written")
    except (OSError, ValueError) as error:  # ConfigError is one
        print(f"ipg.experiments.unified: {error}", file=sys.stderr)
        return 2
    return 0
