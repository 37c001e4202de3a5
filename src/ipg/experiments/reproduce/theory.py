"""The reproductions of the paper's theory: descent, stability, and the method drawn in model space."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipg.experiments.reproduce.cells import Table
from ipg.experiments.reproduce.plan import Reproduction
from ipg.experiments.tables.text import commit_text, origin
from ipg.experiments.theory.descent import ALPHA, Descent, descents
from ipg.experiments.theory.schematic import Schematic, run_schematic, task_loss_surface
from ipg.experiments.theory.stability import Stability, observe
from ipg.report.figures.bands import bands_data, draw_bands
from ipg.report.figures.space import Arrow, draw_space, space_data
from ipg.training.provenance import provenance

__all__ = ["descent_table", "schematic", "schematic_table", "stability_table", "theory"]

Made = tuple[Table, dict[str, str]]
"""A table, with those beneath it, and figures by the stem of their file."""


def theory(reproduction: Reproduction) -> Made:
    """Descent on quadratics, stability on embedded images."""
    settings = reproduction.settings
    found = descents(settings["problems"], settings["steps"])
    observed = [
        observe(tau, floor, seed=seed, steps=settings["iterations"])
        for tau in settings["taus"]
        for floor in settings["floors"]
        for seed in range(settings["seeds"])
    ]
    mark = " (quick version)" if reproduction.quick else ""
    figures = {"theory-descent": _descent_figure(found, mark)}
    figures |= {f"theory-stability-{tau:g}": _stability_figure(observed, tau, mark) for tau in settings["taus"]}
    return replace(descent_table(found), further=(stability_table(observed),)), figures


def descent_table(found: Sequence[Descent]) -> Table:
    """A line a way to step."""
    head = ("way to step", "iterations", "loss at the end", "rises", "rises in the mean", "longest rise")
    lines = [
        (
            descent.way,
            str(descent.losses.shape[1] - 1),
            f"{float(descent.mean[-1]):.4f}",
            _share(descent.rising, 2),
            _share(descent.rising_in_the_mean, 2),
            str(descent.longest_rise),
        )
        for descent in found
    ]
    count = len(found[0].losses)
    source = provenance(torch.device("cpu"))
    records = [
        {
            "way to step": descent.way,
            "problems": count,
            "iterations": descent.losses.shape[1] - 1,
            "loss at the end": float(descent.mean[-1]),
            "rises": descent.rising,
            "rises in the mean": descent.rising_in_the_mean,
            "longest rise": descent.longest_rise,
            **_source(source),
        }
        for descent in found
    ]
    notes = (
        f"The corrective loss of {count:,} random quadratics, alpha {ALPHA:g}, the condition violated throughout, as a "
        "share of its first value. *Rises*: iterations in which the loss of a problem does not fall; *in the mean*: in "
        "which the mean over problems does not; *longest rise*: most of them in a row.",
        f"{origin([source])}.",
    )
    return Table(head, tuple(lines), notes, text=1, records=tuple(records))


def stability_table(observed: Sequence[Stability]) -> Table:
    """A line a threshold and floor, over the seeds."""
    head = ("tau", "floor", "seeds", "violated", "excursions a run", "mean length", "longest", "clipped", "floored")
    lines = []
    records = []
    source = provenance(torch.device("cpu"))
    for tau, floor in dict.fromkeys((run.tau, run.floor) for run in observed):
        runs = [run for run in observed if (run.tau, run.floor) == (tau, floor)]
        lengths = [length for run in runs for length in run.excursions]
        met = sum(run.met for run in runs)
        violated, often = statistics.fmean(run.violated_share for run in runs), len(lengths) / len(runs)
        mean, most = statistics.fmean(lengths) if lengths else None, max(lengths, default=0)
        clipped, floored = (
            sum(sum(getattr(run, name)) for run in runs) / met if met else None for name in ("clipped", "floored")
        )
        values = (tau, floor, len(runs), violated, often, mean, most, clipped, floored)
        records.append({**dict(zip(head, values, strict=True)), **_source(source)})
        lines.append(
            (
                f"{tau:g}",
                f"{floor:g}",
                str(len(runs)),
                _share(violated, 1),
                f"{often:.1f}",
                "–" if mean is None else f"{mean:.1f}",
                str(most),
                _share(clipped, 1),
                _share(floored, 1),
            )
        )
    steps = len(observed[0].violated)
    notes = (
        f"The small network on coloured fashion with noisy labels, 124 pairs, {steps} iterations a run. *Violated*: "
        "share of all iterations. *Excursions*: runs of violated iterations after the condition was met for the first "
        "time. *Clipped*, *floored*: share of the iterations in which the condition is met.",
        f"{origin([source])}.",
    )
    return Table(head, tuple(lines), notes, text=0, records=tuple(records), title="Stability", name="stability")


def _share(value: float | None, digits: int) -> str:
    """A fraction in per cent; one above zero is never told as zero."""
    if value is None:
        return "–"
    least = 10.0**-digits
    text = f"{100 * value:.{digits}f}"
    return f"< {least:.{digits}f} %" if value > 0 and float(text) == 0 else f"{text} %"


def _source(found: Mapping[str, Any]) -> dict[str, Any]:
    """Where a record comes from."""
    return {"hardware": found["hardware"], "commit": commit_text(found["commit"]).strip("`")}


def _descent_figure(found: Sequence[Descent], mark: str) -> str:
    values = {descent.way: [row.tolist() for row in descent.losses[:200]] for descent in found}
    data = bands_data(f"Corrective loss while the condition is violated{mark}", values, across="iteration", first=0)
    return draw_bands(data, name="descent")


def _stability_figure(observed: Sequence[Stability], tau: float, mark: str) -> str:
    runs = [run for run in observed if run.tau == tau]
    values = {
        f"floor {floor:g}": [run.disagreement for run in runs if run.floor == floor]
        for floor in dict.fromkeys(run.floor for run in runs)
    }
    title = f"Disagreeing pairs at tau {tau:g}{mark}"
    data = bands_data(title, values, across="iteration", line=(tau, "the threshold"))
    return draw_bands(data, name=f"stability-{tau:g}".replace(".", "-"), height=200)


def schematic(reproduction: Reproduction) -> Made:
    """The method in model space, from a run with two parameters."""
    run = run_schematic(reproduction.settings["alpha"], reproduction.settings["tau"])
    arrows = [
        arrow
        for step in run.steps
        for arrow in (
            Arrow(step.before, step.corrected, "before"),
            Arrow(step.corrected, step.after, "after" if step.violated else "other-1"),
        )
    ]
    legend = [
        ("before", "corrective update"),
        ("after", f"task update, condition violated: {run.alpha:.2g} of the corrective one's length"),
        ("other-1", "task update, condition met"),
    ]

    def loss(across: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(task_loss_surface(torch.from_numpy(across), torch.from_numpy(up)))

    axes = ("θ₁, the shortcut", "θ₂, the cause")
    data = space_data("The method in model space, over lines of equal task loss", axes, arrows, legend, loss)
    return schematic_table(run), {"schematic": draw_space(data)}


def schematic_table(run: Schematic) -> Table:
    """A line an iteration."""
    head = ("iteration", "disagreement", "condition", "corrective step", "task step", "ratio")
    lines = []
    records = []
    source = provenance(torch.device("cpu"))
    for number, step in enumerate(run.steps, start=1):
        corrective, task = (
            float(np.hypot(end[0] - start[0], end[1] - start[1]))
            for start, end in ((step.before, step.corrected), (step.corrected, step.after))
        )
        condition = "violated" if step.violated else "met"
        ratio = task / corrective if corrective else None
        told = "–" if ratio is None else f"{ratio:.3f}"
        lines.append((str(number), f"{step.disagreement:.3f}", condition, f"{corrective:.3f}", f"{task:.3f}", told))
        values = (number, step.disagreement, condition, corrective, task, ratio)
        records.append({**dict(zip(head, values, strict=True)), **_source(source)})
    note = f"A network with two parameters under plain gradient descent; tau {run.tau:g}. {origin([source])}."
    return Table(head, tuple(lines), (note,), text=0, records=tuple(records))
