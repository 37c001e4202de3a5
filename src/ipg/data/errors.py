"""What is raised when data cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DataError", "ProblemsError"]

SHOWN = 10
"""How many of many problems a message names."""


class DataError(ValueError):
    """A data file is missing, truncated, corrupt or of another kind than expected; the message says what to do."""


class ProblemsError(DataError):
    """Several things are wrong at once: all are in `problems`, the first of them in the message."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        more = len(self.problems) - SHOWN
        super().__init__("; ".join(self.problems[:SHOWN]) + (f"; … and {more:,} more" if more > 0 else ""))
