"""What a search found: its trials, the best of them, and that one as a file for `ipg train --config`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ipg.config import RunConfig
from ipg.experiments.search.objective import Objective
from ipg.experiments.search.plan import STARTUP, Plan, Tried
from ipg.experiments.search.space import configure, describe
from ipg.experiments.search.trial import WORST, in_percent, in_words
from ipg.experiments.study import ELSEWHERE
from ipg.files import write_text
from ipg.words import number_of

__all__ = ["OBJECTIVES", "Found", "best_of", "best_row", "origin_of", "to_toml", "toml_value"]

OBJECTIVES: dict[Objective, str] = {
    "search": "accuracy on the split search, held out of the test environment",
    "worst_group": "accuracy of the worst group of the validation images",
    "pairs": "balanced validation accuracy times the share of held-out pairs that agree",
}
"""What is maximised, in words."""
LEFT_OUT = ("seed", "restarts", *ELSEWHERE)
"""Settings that are not for the file: of the machine, and what belongs to the search: its seed, and whether trials that
collapse begin again."""


@dataclass(frozen=True)
class Found:
    """How a search stands."""

    plan: Plan
    trials: Sequence[Tried]
    importances: Mapping[str, float]
    """How much each setting decides over being among the best, as shares; empty while trials are few."""

    @property
    def best(self) -> Tried | None:
        """The trial with the highest value; of equal ones that with the higher mean of groups, then the first."""
        return best_of(self.trials, by="value")

    @property
    def in_vain(self) -> bool:
        """Whether no trial is worth more than one that collapses, so that the best is none to train with."""
        return self.best is not None and (self.best.value or WORST) <= WORST

    @property
    def best_without_groups(self) -> Tried | None:
        """The best by the rule that needs no group label, whatever the objective."""
        return best_of(self.trials, by="without_groups")

    @property
    def config(self) -> RunConfig:
        """The configuration of the best trial."""
        if self.best is None:
            raise ValueError(f"no trial of {self.plan.name} has a value yet")
        return configure(self.plan.base, self.best.settings)

    @property
    def done(self) -> int:
        """How many trials have a value, and take a place of those that were asked for."""
        return self.count("complete", "wrong", "pruned")

    def count(self, *states: str) -> int:
        """How many trials are in one of these states."""
        return sum(trial.state in states for trial in self.trials)

    def write(self, path: Path) -> Path | None:
        """Write the best configuration as TOML, with where it comes from; nothing of a search that was in vain."""
        return None if self.in_vain else write_text(path, to_toml(self))


def best_of(trials: Sequence[Tried], *, by: str) -> Tried | None:
    """The best trial that was seen to its end, by its `value` or by a number of its row."""

    def measured(trial: Tried) -> float | None:
        return trial.value if by == "value" else trial.about.get(by)

    def rank(trial: Tried) -> tuple[float, float, int]:
        return measured(trial) or WORST, trial.about.get("group_mean") or 0.0, -trial.number

    seen = [trial for trial in trials if trial.state == "complete" and measured(trial) is not None]
    return max(seen, key=rank, default=None)


def best_row(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Which of the rows of trials is that of the best, by the same rule; None where none came to its end."""
    trials = [Tried(row["number"], row["state"], row["value"], {}, row) for row in rows]
    best = best_of(trials, by="value")
    return None if best is None else trials.index(best)


def to_toml(found: Found) -> str:
    """The best configuration; comments say how it was found and what every trial was worth."""
    values = {name: value for name, value in asdict(found.config).items() if name not in LEFT_OUT and value is not None}
    options = values.pop("options")
    lines = [f"# {line}" for line in _origin(found)]
    lines += ["", *(f"{name} = {toml_value(value)}" for name, value in values.items())]
    if options:
        lines += ["", "[options]", *(f"{name} = {toml_value(value)}" for name, value in options.items())]
    lines += ["", "# All trials:", *(f"#   {line}" for line in _trials(found))]
    return "\n".join(lines) + "\n"


def _origin(found: Found) -> Iterator[str]:
    plan, best = found.plan, found.best
    if best is None or best.value is None:
        return
    yield f"{plan.base.method} on {plan.base.data}: the best of {number_of(found.done, 'trial')} of `ipg search`."
    begins = f", at random until {STARTUP} trials have ended" if plan.sampler == "tpe" else ""
    yield f"Sampler {plan.sampler}{begins}; seed {plan.base.seed}, which all trials were trained with."
    yield f"Maximised: {OBJECTIVES[plan.objective]}, at the epoch that a run keeps."
    yield "The search had no test images: they were taken out of the data before it began."
    yield f"Best: trial {best.number}, {in_percent(best.value, 2)} ({in_words(best.settings)})."
    other = found.best_without_groups
    if plan.objective != "pairs" and other is not None:
        yield f"By the rule without group labels ({OBJECTIVES['pairs']}): trial {other.number}."
    for name, range_ in plan.space.items():
        yield f"Searched: {name}, {describe(range_)}."
    yield f"Commit {_several(found, 'commit')}; {_several(found, 'hardware')}; {_versions(best)}."
    yield f"Written on {datetime.now(UTC).isoformat(timespec='seconds')}."


def origin_of(text: str) -> tuple[int | None, float | None]:
    """How many trials had ended when a file of `to_toml` was written, and what the best was worth; None of others."""
    ended = re.search(r"^# .*: the best of ([\d,]+) trials? of `ipg search`\.$", text, re.MULTILINE)
    best = re.search(r"^# Best: trial \d+, ([\d.]+) (% )?", text, re.MULTILINE)  # a fraction in earlier files
    worth = best and float(best[1]) / (100 if best[2] else 1)
    return ended and int(ended[1].replace(",", "")), worth


def _trials(found: Found) -> Iterator[str]:
    for trial in found.trials:
        value = f"{in_percent(trial.value, 2):>8}"
        twin = trial.about.get("as")
        notes = {"complete": "" if twin is None else f"  as trial {twin}", "wrong": f"  {trial.about.get('error')}"}
        yield f"{trial.number:>4}  {value}  {in_words(trial.settings)}{notes.get(trial.state, f'  {trial.state}')}"


def _several(found: Found, name: str) -> str:
    """The values that trials have of something, each once."""
    return " and ".join(dict.fromkeys(str(t.about[name]) for t in found.trials if t.about.get(name))) or "unknown"


def _versions(trial: Tried) -> str:
    return ", ".join(f"{name} {version}" for name, version in trial.about.get("versions", {}).items())


def toml_value(value: Any) -> str:
    """A plain value as TOML."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
