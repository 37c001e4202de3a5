"""What people see while a run goes on, and the tables at its end."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ipg.cli.errors import printable
from ipg.config import RunConfig
from ipg.evaluation.statistics import lowest, wilson
from ipg.models.explainable import is_explainable
from ipg.training.device import resolve_device, resolve_precision
from ipg.training.listeners import Listener
from ipg.words import listed, number_of

if TYPE_CHECKING:
    from torch import nn

    from ipg.data.table import ImageTable
    from ipg.training.materials import Materials

__all__ = [
    "ConsoleListener", "command_line", "in_a_line", "in_their_order", "outputs_taken", "percent", "print_metrics",
    "same_class", "shown_groups", "starts_anew", "unseen_groups", "varied", "watching",
]  # fmt: skip

SPLITS = {"train": "training", "validation": "validation", "test": "test"}
"""Splits whose images are counted, and what these are called."""
LEAST_LABEL = len("pairs that disagree")
"""How wide the column of names is at least."""
MOST_GROUPS = 4
"""How many groups without an image are named."""
RANDOM = "random weights"
"""As networks of timm say where they are from."""
NO_ATTRIBUTE = ", all"
"""How the groups of data without an attribute end: they are its classes."""


def percent(value: float | None) -> str:
    """A fraction as a percentage; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f}"


def same_class(name: str, *, pairs: bool = True) -> str:
    """What to say of a model that tells no image from another; of its `pairs` only where some were measured."""
    agree = ": its pairs agree because everything does" if pairs else ""
    return f"{name} gives every image the same class{agree}."


def command_line() -> str:
    """What was typed, for a report to say how it was made; without the credentials in an address."""
    return re.sub(r"(\w://)[^/\s]*@", r"\1", shlex.join(["ipg", *sys.argv[1:]]))


class ConsoleListener(Listener):
    """A progress bar on a terminal, and a line an epoch everywhere."""

    def __init__(self, console: Console, *, label: str) -> None:
        self.console, self.label = console, label
        self.trained = False
        """Whether the run had anything left to do."""
        self.about: Sequence[str] = ()
        """What is trained, and where it goes, and what to know of it, a line each."""
        self._epochs = 0
        self._same = False
        """Whether every image got the same class after the epoch before."""
        self._bar = Progress(
            BarColumn(bar_width=16),
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
        self.trained, self._epochs = True, config.epochs
        self._say_where(self.label, step, total)
        for line in [*self.about, *varied(config.suited())] if self.about else ():
            self.console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
        self._bar.update(self._task, total=total, completed=step)
        self._bar.start()

    def first_stage(self, *, step: int, total: int) -> None:
        """Say that a run comes before, and where it goes on."""
        self._say_where(f"{self.label}, first stage", step, total)

    def _say_where(self, what: str, step: int, total: int) -> None:
        went = f", from iteration {step:,} of {total:,}" if step else ""
        self.console.print(f"{what}{went}", highlight=False, markup=False)

    def restarted(self, error: Exception, *, number: int, rate: float) -> None:
        """Say why, and with which rate."""
        self.about = ()  # was said
        said = f"  collapsed: begins again with half the learning rate, {rate:g} (restart {number})"
        self.console.print(said, highlight=False, soft_wrap=True)

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """Move the bar and show loss, disagreement and rate."""
        shown = [f"loss {values['task_loss']:.3f}"] if "task_loss" in values else []
        if "disagreement" in values:
            shown.append(f"disagree {100 * values['disagreement']:.0f} %")
        shown.append(f"rate {values['learning_rate']:.1e}")
        self._bar.update(self._task, completed=step, values="  ".join(shown))

    def epoch(self, row: Mapping[str, Any]) -> None:
        """One line; of a row beyond the last epoch, what the network is worth once it was fitted anew."""
        parts = ["  fitted anew"]
        if row["epoch"] <= self._epochs:
            loss = row["train"].get("task_loss", math.nan)
            parts = [f"  epoch {row['epoch']}/{self._epochs}", f"loss {loss:.3f}" if loss < 100 else f"loss {loss:.0e}"]
        parts += [f"{split} {percent(row[split]['average'])}" for split in ("validation", "test") if split in row]
        if row["pair_disagreement"] is not None:
            parts.append(f"pairs disagree {percent(row['pair_disagreement'])}")
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)
        before, self._same = self._same, row.get("validation", {}).get("predicted_classes") == 1
        if self._same and not before:  # once, not after every epoch
            pairs = "" if row["pair_disagreement"] is None else ", so agreement of pairs means nothing"
            said = f"    every image gets the same class{pairs}; if that stays so, ask ipg doctor"
            self.console.print(said, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def in_a_line(config: RunConfig, materials: Materials, folder: Path) -> str:
    """What a run works on and with, and where: network, weights, images, pairs, device, precision, folder."""
    table, model, device = materials.table, materials.model, resolve_device(config.device)
    name = getattr(model, "name", None) or type(model).__name__
    size = "x".join(map(str, table.images.shape[2:]))
    counts = [f"{len(table.indices(split)):,} {word}" for split, word in SPLITS.items() if split in table.splits]
    pairs = [
        f"{number_of(len(found), 'pair')} {what}"
        for found, what in ((materials.pairs, "to guide"), (materials.held_out, "held out"))
        if found is not None
    ]
    return (
        f"{name}, {_weights(config, model)}, {listed(counts)} images of {size}, {listed(pairs) or 'no pairs'}, "
        f"{device.type} in {resolve_precision(config.precision, device)}, kept in {folder}"
    )


def _weights(config: RunConfig, model: nn.Module) -> str:
    """Where the weights of a run's network are from."""
    if config.start is not None:
        return f"from {config.start}"
    if config.weights is None:
        return RANDOM
    known = getattr(model, "origin", None)  # which of several there are by that name
    return str(known) if known and not Path(config.weights).exists() else f"weights from {config.weights}"


def varied(config: RunConfig) -> Iterator[str]:
    """How the images and the rate of a run vary, in a line; none where they do not; nothing is left to `auto`."""
    said = {
        f"images cropped to {config.crop:g} of their area or more": config.crop < 1,
        "images mirrored at random": config.flip,
        f"warm-up over {number_of(config.warmup, 'iteration')}": config.warmup > 0,
    }
    if parts := [text for text, holds in said.items() if holds]:
        yield ", ".join(parts)


def starts_anew(config: RunConfig, model: nn.Module) -> str | None:
    """What to say of a network of timm without weights, for which there are some; None of all others."""
    if config.start is not None or getattr(model, "origin", None) != RANDOM or is_explainable(str(config.model)):
        return None
    return f"{config.model} starts from random weights; for pretrained ones give --weights pretrained or --weights FILE"


def outputs_taken(config: RunConfig, materials: Materials) -> str | None:
    """The order of outputs that is taken for granted of a network that is gone on from; None where it is known."""
    from ipg.training.materials import found_file
    from ipg.training.start import order_is_known

    classes = materials.table.classes
    if config.start is None or order_is_known(found_file(config, config.start), materials.model, classes):
        return None
    return f"{config.start}: outputs taken as {in_their_order(classes)}; its head is kept and has to have this order"


def unseen_groups(config: RunConfig, table: ImageTable) -> str | None:
    """What to say where the worst group of validation images decides and some groups have none; None elsewhere."""
    asked = [f"--{name} worst_group" for name in ("selection", "decision") if getattr(config, name) == "worst_group"]
    if not asked or "validation" not in table.splits:
        return None
    seen = set(table.group[table.indices("validation")].tolist())
    unseen = [table.group_names[number] for number in sorted(set(table.group.tolist()) - seen)]
    if not unseen:
        return None
    word, names = shown_groups(table.group_names)
    more = [number_of(len(unseen) - MOST_GROUPS, f"more {word}")] if len(unseen) > MOST_GROUPS else []
    named = "; ".join([printable(names[name]) for name in unseen[:MOST_GROUPS]] + more)
    remedy = "; --selection pairs needs no groups" if config.selection == "worst_group" else ""
    return f"no validation image is of {named}: {listed(asked)} cannot take them into account{remedy}"


def in_their_order(classes: Sequence[str]) -> str:
    """What the outputs of a network are, by their numbers; classes may be named by numbers, too."""
    return ", ".join(f"{number} = {printable(name)}" for number, name in enumerate(classes))


@contextmanager
def watching(console: Console, *, label: str) -> Iterator[ConsoleListener]:
    """Show a run while the block lasts; who interrupts it is told how to go on."""
    listener = ConsoleListener(console, label=label)
    try:
        yield listener
    except KeyboardInterrupt as error:
        said = str(error) or "interrupted"
        raise KeyboardInterrupt(f"{said}; run the same command again to go on") from None
    finally:
        listener.close()


def shown_groups(groups: Iterable[str]) -> tuple[str, dict[str, str]]:
    """What to call a group, and each of them: where the data has no attribute they are its classes."""
    names = list(groups)
    if names and all(name.endswith(NO_ATTRIBUTE) for name in names):
        return "class", {name: name.removesuffix(NO_ATTRIBUTE) for name in names}
    return "group", {name: name for name in names}


def print_metrics(
    console: Console,
    named: Sequence[tuple[str, Mapping[str, Any], float | None]],
    *,
    title: str,
    pairs: Sequence[int] | None = None,
) -> None:
    """Accuracy on average and by group, a column a run: (name, metrics, seconds); as many tables as it takes.

    Where it is said on how many `pairs` each run was measured, every share has its interval under it.
    """
    console.print(title, highlight=False, markup=False)
    groups = list(dict.fromkeys(group for _, metrics, _ in named for group in metrics.get("groups", {})))
    label = max(
        cell_len(text) for text in ("pairs that disagree", *(f"  {name}" for name in shown_groups(groups)[1].values()))
    )
    width = len("100.0") if pairs is None else len("97.1 to 100.0")
    label = min(label, max(console.width - width - 7, LEAST_LABEL))  # longer names are wrapped, figures never cut
    at_once = max(1, (console.width - label - 4) // (width + 3))
    for start in range(0, len(named), at_once):
        part = slice(start, start + at_once)
        console.print(_metrics_table(named[part], groups, label, width, None if pairs is None else pairs[part]))
    if pairs is not None:
        console.print(
            "Below each figure: the interval that holds the true share with 95 % confidence.",
            highlight=False,
            soft_wrap=True,
        )


def _wrapped(name: str, width: int) -> str:
    """A name in lines of `width` cells at most, each as far in as the first."""
    inside = name.lstrip()
    before = " " * (len(name) - len(inside))
    lines = Text(inside).wrap(Console(width=width), width - len(before))
    return "\n".join(before + line.plain.rstrip() for line in lines)


def _metrics_table(
    named: Sequence[tuple[str, Mapping[str, Any], float | None]],
    groups: Sequence[str],
    label: int,
    width: int,
    pairs: Sequence[int] | None,
) -> Table:
    """A table whose first column is `label` wide at most, and those of figures `width` or more."""
    table = Table()
    table.add_column("", no_wrap=True)  # wrapped below, or else figures would give way to it
    for name, _, _ in named:
        table.add_column(escape(name), justify="right", overflow="fold", min_width=width)
    of_runs = [metrics for _, metrics, _ in named]

    def row(
        name: str, values: Iterable[float | None], counts: Iterable[int] | None = None, *, bold: bool = False
    ) -> None:
        found = list(values)
        shown = [percent(value) for value in found]
        if pairs is not None and counts is not None:
            shown = [f"{share}\n{between}" for share, between in zip(shown, map(_between, found, counts), strict=True)]
        table.add_row(escape(_wrapped(name, label)), *shown, style="bold" if bold else None)

    row("average", (metrics.get("average") for metrics in of_runs), map(_images, of_runs), bold=True)
    word, names = shown_groups(groups)
    row(f"worst {word}", (metrics.get("worst_group") for metrics in of_runs), map(_worst_images, of_runs), bold=True)
    row("mean of classes" if word == "class" else "mean of groups", (metrics.get("group_mean") for metrics in of_runs))
    for group, name in names.items():
        there = [metrics.get("groups", {}).get(group, {}) for metrics in of_runs]
        row(f"  {name}", (one.get("accuracy") for one in there), (one.get("count", 0) for one in there))
    row("pairs that disagree", (metrics.get("pair_disagreement") for metrics in of_runs), pairs)
    if any(seconds is not None for *_, seconds in named):
        table.add_row("seconds", *("–" if seconds is None else f"{seconds:.1f}" for *_, seconds in named))
    return table


def _between(share: float | None, count: int) -> str:
    """The interval of a share of so many; a dash where there is none."""
    if share is None or not count:
        return "–"
    low, high = wilson(round(share * count), count)
    return f"{percent(low)} to {percent(high)}"


def _images(metrics: Mapping[str, Any]) -> int:
    return sum(group["count"] for group in metrics.get("groups", {}).values())


def _worst_images(metrics: Mapping[str, Any]) -> int:
    """How many images the worst group has."""
    groups = [(group["accuracy"], group["count"]) for group in metrics.get("groups", {}).values()]
    return 0 if (place := lowest(groups)) is None else groups[place][1]
