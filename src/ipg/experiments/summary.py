"""What the project's own rows say, in a few figures that come with the package, for where the rows are not at hand.

`summary.json` is made by `python -m ipg.experiments.table --write README.md`, and a test checks that it is what the
rows give. It tells of every reproduction how many trials are done and how long they took on what, and of every method
whether it is verified.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ipg.experiments.arms import Row
from ipg.experiments.reproduce.plan import Reproduction, load_reproduction, names
from ipg.experiments.reproduce.rows import all_rows, measure
from ipg.experiments.reproduce.search import search_rows, whole_searches
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
    sharing: int = 1
    """So many shared a GPU."""
    others: bool = False
    """Whether other processes were at work on it."""


@dataclass(frozen=True)
class Standing:
    """How a reproduction stands."""

    done: int
    """Trials that have a row, or searches whose trials have all ended."""
    times: tuple[Time, ...]


def standings(results: Path) -> dict[str, Standing]:
    """How every reproduction stands by the rows in `results`."""
    rows = all_rows(results)
    found = {}
    for name in names():
        reproduction = load_reproduction(name)
        found[name] = standing_of(reproduction, rows, results)
    return found


def standing_of(reproduction: Reproduction, rows: Iterable[Row], results: Path) -> Standing:
    """How a reproduction stands by `rows`, or by the searches in `results`."""
    if reproduction.kind == "search":
        home = results / reproduction.name
        done, _ = whole_searches(reproduction, home)
        return Standing(done, times_of(row for rows in search_rows(reproduction, home).values() for row in rows))
    own = {id(row): row for entry in measure(reproduction, rows) for row in entry.rows}
    return Standing(len(own), times_of(own.values()))


def times_of(rows: Iterable[Row]) -> tuple[Time, ...]:
    """The mean seconds of trials, by data set and hardware.

    Those count that had a GPU to themselves. On a data set where none had, those that as many shared one with as most.
    """
    found: dict[str, dict[tuple[bool, int], dict[str, list[float]]]] = {}
    for row in rows:
        company = (bool(row.get("others", False)), int(row.get("sharing", 1)))
        of_data = found.setdefault(row["dataset"], {}).setdefault(company, {})
        of_data.setdefault(row["hardware"], []).append(row["seconds"])
    times = []
    for dataset, by_company in found.items():
        others, sharing = min(by_company, key=lambda company: _rank(company, by_company[company]))
        for hardware, seconds in by_company[others, sharing].items():
            mean = round(statistics.fmean(seconds), 1)
            times.append(Time(dataset, hardware, mean, len(seconds), sharing, others))
    return tuple(times)


def _rank(company: tuple[bool, int], seconds: Mapping[str, Sequence[float]]) -> tuple[bool, int, int]:
    """Which trials tell best how long one takes, the least first: those alone, then the most, then the less crowded."""
    others, sharing = company
    return others or sharing > 1, -sum(map(len, seconds.values())), sharing


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
