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
