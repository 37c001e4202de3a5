"""Size: the same commands on ever more, with their time and memory, and a training watched for minutes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.large import KINDS, Kind
from campaign.measured import Measured, fastest, measured

from ipg.benchmarks.figures import Curve, draw_growth, power, slope
from ipg.experiments.tables.text import markdown, short

MINUTES = 3.0
"""How long a training is watched; `--minutes` says otherwise."""
LEAST_RISE = 1.25
"""The power of a size beyond which time or memory is said to grow faster than the size: 1, and room for what else the
machine does."""
MOST_GROWTH = 0.02
"""Of what a training has resident, from a fifth of its time on."""

PROMISE = (
    "Time and memory grow no faster than what a command is given: rows of a table, images in a folder, pairs, "
    "classes, trials of a study or of a report. Checking 100,000 images takes at most 1 GiB of memory, and listing "
    "5,000 trials at most 2 seconds. The memory of a training run grows by at most 2 % after the first fifth of its "
    "time."
)
MEANS = (
    "Each of these is made in three sizes, up to a million rows, and the command that reads it is started as a user "
    "would start it. Its seconds and the most memory it holds (resident) are measured; short commands run three "
    "times, and the best counts. The slope is the power of the size with which time or memory grows: between the two "
    "largest sizes in the table, over all sizes in the figure. A training run goes on for minutes while its memory is"
    " read every second."
)
LIMITS = (
    "Another machine gives other figures. The start of a command takes its time, most of it to import PyTorch. Images"
    " that nearly all look alike take longer, since each is compared with every other. The page that a search writes "
    "is not tested."
)
CASES = 3 * len(KINDS) + 1
SERIES = {"seconds": ("seconds", "#c2540a"), "mebibytes": ("MiB", "#0069b4")}
FIGURE = "size.svg"
TRAIN = ("train", "--epochs", "1000000", "--steps", "50", "--pairs", "40", "--device", "cpu", "--output", "run")
MIB = 1 << 20


@dataclass
class World:
    """Where cases happen, and what they have found."""

    place: Path
    points: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """Seconds and MiB of each kind, by size."""
    training: dict[str, float] | None = None


def prepare(folder: Path) -> World:
    """Nothing is there before a case makes it."""
    return World(folder / "place")


def attempt(world: World, seed: int, number: int) -> str | None:
    """The smallest of every kind first, the largest and the training last."""
    place, which = divmod(number, len(KINDS))
    world.place.mkdir()
    try:
        if number >= CASES - 1:
            return _train(world)
        name = list(KINDS)[which]
        wrong = _measure(world, name, KINDS[name].sizes[place], seed)
        return None if wrong is None else f"{KINDS[name].sizes[place]:,} {KINDS[name].title}: {wrong}"
    finally:
        shutil.rmtree(world.place)


def _measure(world: World, name: str, size: int, seed: int) -> str | None:
    kind = KINDS[name]
    kind.make(world.place, size, seed)
    found = fastest(kind.line, folder=world.place, environment=_environment(world.place))
    if found.code:
        return f"exit {found.code}: {found.err[-300:]}"
    points = world.points.setdefault(name, {})
    points[size] = (found.seconds, found.peak / MIB)
    return missed(kind, points) if size == kind.sizes[-1] else None


def missed(kind: Kind, points: dict[int, tuple[float, float]]) -> str | None:
    """Which aim the largest size misses."""
    size = max(points)
    seconds, mebibytes = points[size]
    if kind.seconds is not None and seconds > kind.seconds:
        return f"{seconds:.2f} s, aimed at {kind.seconds:g}"
    if kind.memory is not None and mebibytes * MIB > kind.memory:
        return f"{mebibytes:.0f} MiB, aimed at {kind.memory // MIB}"
    for what, rise in zip(SERIES, rises(points), strict=True):
        if rise is not None and rise > LEAST_RISE:
            return f"{what} grow with the power {rise:.2f} of the size"
    return None


def rises(points: dict[int, tuple[float, float]]) -> list[float | None]:
    """The power of the size that seconds and MiB go with, between the two largest; None where there is one alone."""
    sizes = sorted(points)[-2:]
    return [slope(sizes, [points[size][n] for size in sizes]) if len(sizes) > 1 else None for n in (0, 1)]


def _train(world: World) -> str | None:
    found = measured(TRAIN, folder=world.place, environment=_environment(world.place), seconds=60 * MINUTES)
    if found.code or found.seconds < 60 * MINUTES:
        return f"the training ended with {found.code}: {found.err[-300:]}"
    world.training = growth(found)
    share = world.training["growth"]
    return None if share <= MOST_GROWTH else f"what a training has resident grew by {share:.1%}"


def growth(found: Measured) -> dict[str, float]:
    """How much a training had resident after a fifth of its time and at its end, each over a tenth of it."""

    def mean(start: float, end: float) -> float:
        resident = [size for at, size in found.resident if start <= at / found.seconds <= end]
        return sum(resident) / len(resident) / MIB

    early, late = mean(0.2, 0.3), mean(0.9, 1.0)
    return {"minutes": found.seconds / 60, "early": early, "late": late, "growth": late / early - 1}


def _environment(place: Path) -> dict[str, str]:
    return {"IPG_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}


def facts(world: World) -> dict[str, Any]:
    """What the row keeps beside the number of cases."""
    sizes = {name: [[size, *found] for size, found in sorted(points.items())] for name, points in world.points.items()}
    return {"sizes": sizes, "training": world.training}


def shown(row: dict[str, Any]) -> str:
    """The table, and the figure it goes with."""
    lines = [_line(KINDS[name], points) for name, points in row["sizes"].items() if name in KINDS]
    head = ["what grows", "sizes", "seconds", "slope", "MiB resident", "slope"]
    parts = [f"![How time and memory grow]({FIGURE})", markdown(head, lines)]
    if (training := row["training"]) is not None:
        parts.append(
            f"A training run of {training['minutes']:.0f} minutes had {training['early']:.1f} MiB resident after a "
            f"fifth of its time and {training['late']:.1f} MiB at its end: {training['growth']:+.2%}."
        )
    return "\n\n".join(parts)


def figures(row: dict[str, Any]) -> dict[str, str]:
    """Files beside the page."""
    curves = [_curve(KINDS[name], points) for name, points in row["sizes"].items() if name in KINDS and len(points) > 1]
    return {FIGURE: draw_growth(curves, title=f"Seconds and MiB resident, {row['hardware']}", series=SERIES)}


def _curve(kind: Kind, points: Sequence[Sequence[float]]) -> Curve:
    sizes, seconds, mebibytes = zip(*points, strict=True)
    return Curve(kind.title, tuple(map(int, sizes)), {"seconds": seconds, "mebibytes": mebibytes})


def _line(kind: Kind, points: Sequence[Sequence[float]]) -> list[str]:
    rise = rises({int(size): (seconds, mebibytes) for size, seconds, mebibytes in points})
    sizes, seconds, mebibytes = (" … ".join(texts) for texts in zip(*map(_cells, points), strict=True))
    slopes = ["–" if found is None else power(found) for found in rise]
    return [kind.title, sizes, seconds, slopes[0], mebibytes, slopes[1]]


def _cells(point: Sequence[float]) -> tuple[str, str, str]:
    return f"{int(point[0]):,}", short(point[1]), f"{point[2]:,.0f}"
