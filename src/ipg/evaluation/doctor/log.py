"""What a run has logged, as findings ask for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipg.evaluation.selection import is_refit

__all__ = ["RunLog"]


@dataclass(frozen=True)
class RunLog:
    """What a run has left: settings, a row an epoch, and how it failed if it did."""

    config: Mapping[str, Any]
    """The flat configuration."""
    rows: Sequence[Mapping[str, Any]] = ()
    """As in `metrics.jsonl`; none in a run that never ended an epoch."""
    failure: Mapping[str, Any] | None = field(default=None)
    """As in `failure.json`."""
    classes: int | None = None
    """How many the data has; by the names of the validation groups where not given."""
    unfinished: bool = False
    """Whether there is more to come: the run goes on, or was stopped and can."""

    def of_steps(self, name: str) -> list[float]:
        """The means by epoch of a value that steps log; empty where the method does not log it."""
        found = [row.get("train", {}).get(name) for row in self.rows]
        return [value for value in found if value is not None and math.isfinite(value)]

    def of_epochs(self, name: str) -> list[float]:
        """A value of each epoch's end; empty where it was not measured."""
        return [value for row in self.rows if (value := row.get(name)) is not None]

    @property
    def epochs(self) -> int:
        """How many epochs have ended; a refit after the last is none."""
        return sum(not is_refit(row, self.config) for row in self.rows)

    @property
    def guided(self) -> bool:
        """Whether the method was guided by pairs, as far as the log tells."""
        return bool(self.of_steps("disagreement"))

    @property
    def validation(self) -> Mapping[str, Any]:
        """The metrics of the last epoch on validation images."""
        found: Mapping[str, Any] = (self.rows[-1].get("validation") or {}) if self.rows else {}
        return found

    @property
    def groups(self) -> list[list[Mapping[str, Any]]]:
        """The groups of `validation`, a list a class: its attributes in order, those without an image included."""
        named: Mapping[str, Mapping[str, Any]] = self.validation.get("groups") or {}
        found, classes = list(named.values()), self.classes or _classes_in(list(named))
        each = max(len(found) // max(classes, 1), 1)
        return [found[start : start + each] for start in range(0, len(found), each)]


def _classes_in(groups: Sequence[str]) -> int:
    """How many classes these groups are of: each with every attribute, and commas may be in the names of both."""
    name = groups[0] if groups else ""
    for place in (place for place in reversed(range(len(name))) if name.startswith(", ", place)):
        label, attribute = name[:place], name[place:]
        attributes = [other[place:] for other in groups if other.startswith(f"{label}, ")]
        classes = [other.removesuffix(attribute) for other in groups if other.endswith(attribute)]
        if [one + other for one in classes for other in attributes] == list(groups):
            return len(classes)
    return len({other.rpartition(", ")[0] for other in groups})
