"""What is raised when data cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["DataError", "MissingError", "ProblemsError", "gathered"]

SHOWN = 10
"""How many of many problems a message names."""


class DataError(ValueError):
    """A data file is missing, truncated, corrupt or of another kind than expected; the message says what to do."""


class MissingError(DataError):
    """The files of a data set that has a name are not where it is looked for."""


class ProblemsError(DataError):
    """Several things are wrong at once: all are in `problems`, the first of them in the message."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        more = len(self.problems) - SHOWN
        super().__init__("; ".join(self.problems[:SHOWN]) + (f"; … and {more:,} more" if more > 0 else ""))


@contextmanager
def gathered(problems: list[str]) -> Iterator[None]:
    """What is wrong inside joins `problems`, so that it can be told with what is wrong elsewhere."""
    try:
        yield
    except ProblemsError as error:
        problems += error.problems
    except DataError as error:
        problems.append(str(error))
