"""What the project's own rows say, in a few figures that come with the package, for where the rows are not at hand.

`summary.json` is made by `python -m ipg.experiments.table --write README.md`, and a test checks that it is what the
rows give. It tells of every reproduction how many trials are done and how long they took on what, and of every method
whether it is verified.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ipg.experiments.arms import Row, is_timed
from ipg.experiments.reproduce.plan import Reproduction, load_reproduction, names
from ipg.experiments.reproduce.rows import all_rows, measure
from ipg.experiments.reproduce.search import found_settings
from ipg.experiments.verified import Verdict, claims, result_rows, verdict
from ipg.methods import METHODS

__all__ = [
    "FILE", "Standing", "Time", "packaged_standing", "packaged_verdict", "standing_of", "standings", "summary_text",
]  # fmt: skip

FILE = "summary.json"


@dataclass(frozen=True)
class Time:
    """How long trials on a data set took."""

    dataset: str
    hardware: str
    seconds: float
    """The mean of a trial."""
    measured: int
    """Of so many."""


@dataclass(frozen=True)
class Standing:
    """How a reproduction stands."""

    done: int
    """Trials that have a row, or searches that have found settings."""
    times: tuple[Time, ...]


def standings(results: Path) -> dict[str, Standing]:
    """How every reproduction stands by the rows in `results`."""
    rows = {kind: all_rows(results, kind) for kind in (None, "dynamics")}
    found = {}
    for name in names():
        reproduction = load_reproduction(name)
        known = rows["dynamics" if reproduction.kind == "dynamics" else None]
        found[name] = standing_of(reproduction, known, results)
    return found


def standing_of(reproduction: Reproduction, rows: Iterable[Row], results: Path) -> Standing:
    """How a reproduction stands by `rows`, or by the searches in `results`."""
    own = {id(row): row for entry in measure(reproduction, rows) for row in entry.rows}
    return Standing(_done(reproduction, len(own), results), times_of(own.values()))


def times_of(rows: Iterable[Row]) -> tuple[Time, ...]:
    """The mean seconds of trials that had a GPU to themselves, by data set and hardware."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if is_timed(row):
            seconds.setdefault((row["dataset"], row["hardware"]), []).append(row["seconds"])
    return tuple(
        Time(dataset, hardware, round(statistics.fmean(values), 1), len(values))
        for (dataset, hardware), values in seconds.items()
    )


def summary_text(results: Path) -> str:
    """The file, from the rows in `results`."""
    known, rows = claims(), result_rows(results)
    content = {
        "reproductions": {name: asdict(found) for name, found in standings(results).items()},
        "methods": {} if rows is None else {name: asdict(verdict(name, known, rows)) for name in METHODS},
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def packaged_standing(name: str) -> Standing | None:
    """How a reproduction stands in the project's own results; None where the package does not say."""
    found = _packaged()["reproductions"].get(name)
    return None if found is None else Standing(found["done"], tuple(Time(**values) for values in found["times"]))


def packaged_verdict(method: str) -> Verdict:
    """How a method stands by the project's own rows."""
    found = _packaged()["methods"].get(method)
    return verdict(method, claims(), None) if found is None else Verdict(**found)


@cache
def _packaged() -> Mapping[str, Any]:
    """What the package holds."""
    found: Mapping[str, Any] = json.loads(resources.files("ipg.experiments").joinpath(FILE).read_text(encoding="utf-8"))
    return found


def _done(reproduction: Reproduction, rows: int, results: Path) -> int:
    if reproduction.kind != "search":
        return rows
    return sum(best is not None for best in found_settings(reproduction, results / reproduction.name).values())
