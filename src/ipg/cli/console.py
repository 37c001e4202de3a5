"""What people see while a run goes on, and the tables at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ipg.config import RunConfig
from ipg.training.listeners import Listener

__all__ = ["ConsoleListener", "metrics_table", "percent"]


def percent(value: float | None) -> str:
    """A fraction as a percentage; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f}"


class ConsoleListener(Listener):
    """A progress bar on a terminal, and a line an epoch everywhere."""

    def __init__(self, console: Console, *, label: str) -> None:
        self.console, self.label = console, label
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(label, values="", total=None)

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        """Show the bar; say where a resumed run goes on."""
        if step:
            self.console.print(f"{self.label}: going on at iteration {step:,} of {total:,}")
        self._bar.update(self._task, total=total, completed=step)
        self._bar.start()

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """Move the bar and show loss, disagreement and rate."""
        shown = [f"loss {values['task_loss']:.3f}"] if "task_loss" in values else []
        if "disagreement" in values:
            shown.append(f"pairs disagree {100 * values['disagreement']:.0f} %")
        shown.append(f"rate {values['learning_rate']:.1e}")
        self._bar.update(self._task, completed=step, values="  ".join(shown))

    def epoch(self, row: Mapping[str, Any]) -> None:
        """One line."""
        parts = [f"{self.label}: epoch {row['epoch']}", f"loss {row['train'].get('task_loss', math.nan):.3f}"]
        parts += [f"{split} {percent(row[split]['average'])}" for split in ("validation", "test") if split in row]
        if row["pair_disagreement"] is not None:
            parts.append(f"pairs disagree {percent(row['pair_disagreement'])}")
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def metrics_table(named: Sequence[tuple[str, Mapping[str, Any], float | None]], *, title: str) -> Table:
    """Accuracy on average and by group, a column a run: (name, metrics, seconds)."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name, _, _ in named:
        table.add_column(name, justify="right")

    def row(label: str, values: Iterable[float | None], *, bold: bool = False) -> None:
        table.add_row(label, *(percent(value) for value in values), style="bold" if bold else None)

    row("average", (metrics.get("average") for _, metrics, _ in named), bold=True)
    row("worst group", (metrics.get("worst_group") for _, metrics, _ in named), bold=True)
    row("mean of groups", (metrics.get("group_mean") for _, metrics, _ in named))
    for group in named[0][1].get("groups", {}):
        row(f"  {group}", (metrics["groups"].get(group, {}).get("accuracy") for _, metrics, _ in named))
    row("pairs that disagree", (metrics.get("pair_disagreement") for _, metrics, _ in named))
    if any(seconds is not None for *_, seconds in named):
        table.add_row("seconds", *("–" if seconds is None else f"{seconds:.1f}" for *_, seconds in named))
    return table
