"""What moved since rows were kept, by more than the noise.

A case is compared by its ratio where it has one and by its value otherwise. Both noises are taken on a logarithmic
scale: that of now is half the range over the repeats, that of then half the distance of the row's quartiles. A case
has moved where the median of the repeats is further from the row than `FACTOR` times the two together, and than
`LEAST` at any rate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ipg.benchmarks.rows import Key, Row, key, newest

__all__ = ["Change", "Comparison", "compare_rows", "require"]

FACTOR = 2.0
LEAST = math.log(1.03)
"""Less than three per cent is never worth a word."""


@dataclass(frozen=True)
class Change:
    """One case, then and now."""

    benchmark: str
    case: str
    baseline: str | None
    unit: str
    """Of then and now; empty where they are ratios."""
    then: float
    now: float
    noise: float
    """The factor either way that counts as noise."""
    worse: bool
    """Whether now is slower, or larger, than then."""

    @property
    def factor(self) -> float:
        """Now over then."""
        return self.now / self.then

    @property
    def moved(self) -> bool:
        """Whether that is more than noise."""
        return self.factor > self.noise or self.factor < 1 / self.noise


@dataclass(frozen=True)
class Comparison:
    """All cases, then and now."""

    changes: tuple[Change, ...]
    new: tuple[Key, ...]
    """Measured now, without a row."""
    gone: tuple[Key, ...]
    """With a row, of a benchmark that was measured now, and without a measurement."""

    @property
    def moved(self) -> tuple[Change, ...]:
        """What changed by more than noise, the worst first."""
        found = [change for change in self.changes if change.moved]
        return tuple(sorted(found, key=lambda change: (not change.worse, -abs(math.log(change.factor)))))


def require(kept: Iterable[Row], hardware: str) -> None:
    """Raise a ValueError where no kept row is of this hardware: there is nothing to compare with."""
    known = sorted({row["hardware"] for row in kept})
    if hardware not in known:
        raise ValueError(
            f"no row is of this machine ({hardware}); rows are of: {'; '.join(known) or 'none'}. Choose as many "
            f"threads with --threads, or keep rows of this machine with --write"
        )


def compare_rows(now: Sequence[Row], kept: Sequence[Row]) -> Comparison:
    """Compare rows measured now, each case several times, with the newest kept rows of the same hardware."""
    repeats: dict[Key, list[Row]] = {}
    for row in now:
        repeats.setdefault(key(row), []).append(row)
    benchmarks = {row["benchmark"] for row in now}
    then: dict[Key, Row] = {}
    for hardware in dict.fromkeys(row["hardware"] for row in now):
        then |= {name: row for name, row in newest(kept, hardware).items() if row["benchmark"] in benchmarks}
    return Comparison(
        changes=tuple(_change(then[name], rows) for name, rows in repeats.items() if name in then),
        new=tuple(name for name in repeats if name not in then),
        gone=tuple(name for name in then if name not in repeats),
    )


def _change(then: Row, now: Sequence[Row]) -> Change:
    name = "value" if then["ratio"] is None else "ratio"
    values = [row[name] for row in now]
    middle = statistics.median(values)
    spread_now = math.log(max(values) / min(values)) / 2
    noise = max(LEAST, FACTOR * math.hypot(spread_now, _spread(then)))
    more_is_better = then["unit"].endswith("/s")
    return Change(
        benchmark=then["benchmark"],
        case=then["case"],
        baseline=then["baseline"],
        unit=then["unit"] if name == "value" else "",
        then=then[name],
        now=middle,
        noise=math.exp(noise),
        worse=(middle < then[name]) == more_is_better and middle != then[name],
    )


def _spread(row: Mapping[str, float]) -> float:
    """Half the distance of a row's quartiles; 0 for a row without."""
    low, high = row.get("low"), row.get("high")
    return math.log(high / low) / 2 if low and high else 0.0
