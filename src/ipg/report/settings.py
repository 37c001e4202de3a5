"""How the runs of a report came about: settings, rules and times, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ipg.evaluation.selection import is_refit, kept_epoch
from ipg.report.views import RunView, number

__all__ = ["SELECTIONS", "duration", "made", "seconds", "settings", "total_time", "value_text"]

SELECTIONS = {
    "last": "the last epoch",
    "training_environments": "best validation accuracy over the training environments",
    "worst_group": "best worst-group validation accuracy",
    "pairs": "best validation accuracy times agreement on held-out pairs",
}
"""Rules by which a run keeps one of its epochs (`ipg.evaluation.selection`), in words; none reads the test split."""


def made(run: RunView) -> dict[str, object]:
    """How one run came about."""
    rule = run.result.get("selection")
    return {
        "name": run.name,
        "folder": run.folder,
        "method": run.method,
        "seed": value_text(run.config.get("seed")),
        "selection": SELECTIONS.get(str(rule), str(rule)) if rule is not None else "–",
        "epoch": _epoch(run),
        "seconds": duration(seconds(run)),
    }


def _epoch(run: RunView) -> str:
    """Which epoch was kept, of how many, and whether its network was fitted anew."""
    epoch, refitted = kept_epoch(run.result)
    if epoch is None:
        return "refitted" if refitted else "–"
    count = sum(not is_refit(row, run.config) for row in run.epochs)
    return f"{epoch}" + (f" of {count}" if count else "") + (", refitted" if refitted else "")


def settings(runs: Sequence[RunView]) -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
    """The settings on which all runs agree, and those on which they differ with a value a run."""
    flat = [dict(_flatten(run.config)) for run in runs]
    shared, differing = [], []
    for key in dict.fromkeys(key for config in flat for key in config):
        values = [value_text(config[key]) if key in config else "" for config in flat]
        if len(set(values)) == 1:
            shared.append((key, values[0]))
        else:
            differing.append((key, values))
    return shared, differing


def seconds(run: RunView) -> float | None:
    """How long a run took."""
    return number(run.result.get("seconds"))


def total_time(runs: Sequence[RunView]) -> str | None:
    """The time of all runs together; None unless every run has one."""
    times = [seconds(run) for run in runs]
    known = [value for value in times if value is not None]
    return duration(sum(known)) if known and len(known) == len(times) else None


def duration(value: float | None) -> str:
    """A duration: `6.1 s`, `2 min 5 s`, `3 h 20 min`."""
    space = "\N{NO-BREAK SPACE}"
    if value is None:
        return "–"
    if value < 59.95:
        return f"{value:.1f}{space}s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}{space}min {whole % 60}{space}s"
    return f"{whole // 3600}{space}h {whole % 3600 // 60}{space}min"


def _flatten(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def value_text(value: Any) -> str:
    """A setting as its user would type it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(item) for item in value)
    return str(value)
