"""A search as figures: the best by trial, what every setting was worth, and which settings decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from ipg.experiments.search.plan import Tried
from ipg.experiments.search.result import Found
from ipg.methods.space import Choice, LogUniform
from ipg.report.figures.drawing import (
    INK,
    MUTED,
    NARROW,
    SERIES,
    TRACK,
    bar,
    bare,
    fit,
    inset,
    percent_ticks,
    style,
    text_width,
    titled,
    to_svg,
)
from ipg.report.views import percent

__all__ = ["Shares", "Worth", "draw_shares", "draw_worth", "history_data", "importance_data", "slices_data"]

OTHERS, BEST = SERIES["other-5"], SERIES["after"]


@dataclass(frozen=True)
class Worth:
    """What trials were worth, over their number or over a setting."""

    key: str
    title: str
    places: tuple[float, ...]
    values: tuple[float, ...]
    best: int | None
    """Which of them is the best."""
    rising: bool = False
    """Whether a line shows the best so far."""
    logarithmic: bool = False
    names: tuple[str, ...] = ()
    """What the places 0, 1, … stand for, where they are no numbers."""


@dataclass(frozen=True)
class Shares:
    """Parts of a whole, the largest first."""

    title: str
    names: tuple[str, ...]
    shares: tuple[float, ...]


def history_data(found: Found) -> Worth:
    """The value of every trial by its number, and the best so far."""
    seen = _with_values(found)
    return Worth(
        "history",
        "Best so far",
        tuple(float(trial.number) for trial in seen),
        tuple(trial.value or 0.0 for trial in seen),
        _best(found, seen),
        rising=True,
    )


def slices_data(found: Found) -> tuple[Worth, ...]:
    """The value of every trial over each of its settings; a setting that never differed is left out."""
    panels = []
    for name, range_ in found.plan.space.items():
        seen = [trial for trial in _with_values(found) if name in trial.settings]
        tried = [trial.settings[name] for trial in seen]
        if len(set(tried)) < 2:
            continue
        names = tuple(map(str, range_.values)) if isinstance(range_, Choice) else ()
        places = [float(range_.values.index(value)) if isinstance(range_, Choice) else float(value) for value in tried]
        values = tuple(trial.value or 0.0 for trial in seen)
        logarithmic = isinstance(range_, LogUniform)
        panels.append(
            Worth(
                f"slice-{name}", name, tuple(places), values, _best(found, seen), logarithmic=logarithmic, names=names
            )
        )
    return tuple(panels)


def importance_data(importances: Mapping[str, float]) -> Shares:
    """How much each setting decides over being among the best."""
    return Shares("Which settings decide", tuple(importances), tuple(importances.values()))


def _with_values(found: Found) -> list[Tried]:
    return [trial for trial in found.trials if trial.value is not None]


def _best(found: Found, seen: Sequence[Tried]) -> int | None:
    return seen.index(found.best) if found.best in seen else None


def draw_worth(data: Worth) -> str:
    """Points, the best of them ringed; empty without any."""
    if not data.values:
        return ""
    with style():
        figure, _, head = titled(data.title, "", NARROW, 230)
        axes = inset(figure, left=50, top=head + 24, right=12, bottom=44)
        if data.rising:
            axes.step(data.places, list(accumulate(data.values, max)), where="post", color=BEST, linewidth=2, zorder=3)
        axes.plot(
            data.places, data.values, linestyle="", marker="o", markersize=5, color=OTHERS, clip_on=False, zorder=2
        )
        if data.best is not None:
            at = [data.places[data.best]], [data.values[data.best]]
            axes.plot(*at, linestyle="", marker="o", markersize=7, color=BEST, clip_on=False, zorder=4)
        if data.logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        elif data.names:
            axes.set_xticks(range(len(data.names)), [fit(name, 60, 12) for name in data.names])
            axes.set_xlim(-0.5, len(data.names) - 0.5)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=data.rising))
        axes.set_ylim(0, 1)
        percent_ticks(axes, 4, ".0f")
        axes.set_xlabel("Trial" if data.rising else "", color=MUTED, fontsize=12, labelpad=6)
        bare(axes)
        spoken = (
            f"{data.title}: {len(data.values)} trials from {percent(min(data.values))} to {percent(max(data.values))}."
        )
        return to_svg(figure, data.key, spoken)


def draw_shares(data: Shares) -> str:
    """A bar for each part; empty without any."""
    if not data.names:
        return ""
    thick, row = 14, 42  # pixels
    with style():
        figure, axes, head = titled(data.title, "", NARROW, 10 + row * len(data.names))
        full = NARROW - text_width("100.0 %", 12) - 8
        for place, (name, share) in enumerate(zip(data.names, data.shares, strict=True)):
            y = head + 10 + row * place
            axes.text(0, y + 13, fit(name, NARROW, 12), color=INK, fontsize=12)
            bar(axes, y + 19, full, thick, TRACK)
            bar(axes, y + 19, max(2.0, full * share), thick, BEST)
            axes.text(NARROW, y + 30.5, percent(share), color=INK, fontsize=12, ha="right")
        spoken = ", ".join(f"{name} {percent(share)}" for name, share in zip(data.names, data.shares, strict=True))
        return to_svg(figure, "importance", f"{data.title}: {spoken}.")
