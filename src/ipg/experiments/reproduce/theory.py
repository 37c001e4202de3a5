"""The reproductions of the paper's theory: descent, stability, and the method drawn in model space."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ipg.experiments.reproduce.plan import Reproduction
from ipg.experiments.reproduce.table import Table
from ipg.experiments.tables.text import origin
from ipg.experiments.theory.descent import ALPHA, Descent, descents
from ipg.experiments.theory.schematic import Schematic, run_schematic, task_loss_surface
from ipg.experiments.theory.stability import Stability, observe
from ipg.report.figures.bands import bands_data, draw_bands
from ipg.report.figures.space import Arrow, draw_space, space_data
from ipg.training.provenance import provenance

__all__ = ["descent_table", "schematic", "schematic_table", "stability_table", "theory"]

Made = tuple[Table, list[str], dict[str, str]]
"""A table, further ones as text, and figures by the stem of their file."""


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
    return descent_table(found), [stability_table(observed).markdown()], figures


def descent_table(found: Sequence[Descent]) -> Table:
    """A line a way to step."""
    head = ("way to step", "iterations", "loss at the end", "rises", "rises in the mean", "longest rise")
    lines = [
        (
            descent.way,
            str(descent.losses.shape[1] - 1),
            f"{float(descent.mean[-1]):.4f}",
            f"{100 * descent.rising:.2f} %",
            f"{100 * descent.rising_in_the_mean:.2f} %",
            str(descent.longest_rise),
        )
        for descent in found
    ]
    count = len(found[0].losses)
    notes = (
        f"The corrective loss of {count:,} random quadratics, alpha {ALPHA:g}, the condition violated throughout, as a "
        "share of its first value. *Rises*: iterations in which the loss of a problem does not fall; *in the mean*: in "
        "which the mean over problems does not; *longest rise*: most of them in a row.",
        f"{_machine()}.",
    )
    return Table(head, tuple(lines), notes, text=1)


def stability_table(observed: Sequence[Stability]) -> Table:
    """A line a threshold and floor, over the seeds."""
    head = ("tau", "floor", "seeds", "violated", "excursions a run", "mean length", "longest", "clipped", "floored")
    lines = []
    for tau, floor in dict.fromkeys((run.tau, run.floor) for run in observed):
        runs = [run for run in observed if (run.tau, run.floor) == (tau, floor)]
        lengths = [length for run in runs for length in run.excursions]
        met = sum(run.met for run in runs)
        lines.append(
            (
                f"{tau:g}",
                f"{floor:g}",
                str(len(runs)),
                f"{100 * statistics.fmean(run.violated_share for run in runs):.1f} %",
                f"{len(lengths) / len(runs):.1f}",
                f"{statistics.fmean(lengths):.1f}" if lengths else "–",
                str(max(lengths, default=0)),
                *(
                    f"{100 * sum(sum(getattr(run, name)) for run in runs) / met:.1f} %" if met else "–"
                    for name in ("clipped", "floored")
                ),
            )
        )
    steps = len(observed[0].violated)
    notes = (
        f"The small network on coloured fashion with noisy labels, 124 pairs, {steps} iterations a run. *Violated*: "
        "share of all iterations. *Excursions*: runs of violated iterations after the condition was met for the first "
        "time. *Clipped*, *floored*: share of the iterations in which the condition is met.",
        f"{_machine()}.",
    )
    return Table(head, tuple(lines), notes, text=0)


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
    return schematic_table(run), [], {"schematic": draw_space(data)}


def schematic_table(run: Schematic) -> Table:
    """A line an iteration."""
    head = ("iteration", "disagreement", "condition", "corrective step", "task step", "ratio")
    lines = []
    for number, step in enumerate(run.steps, start=1):
        corrective, task = (
            float(np.hypot(end[0] - start[0], end[1] - start[1]))
            for start, end in ((step.before, step.corrected), (step.corrected, step.after))
        )
        condition = "violated" if step.violated else "met"
        ratio = f"{task / corrective:.3f}" if corrective else "–"
        lines.append((str(number), f"{step.disagreement:.3f}", condition, f"{corrective:.3f}", f"{task:.3f}", ratio))
    note = f"A network with two parameters under plain gradient descent; tau {run.tau:g}. {_machine()}."
    return Table(head, tuple(lines), (note,), text=0)


def _machine() -> str:
    return origin([provenance(torch.device("cpu"))])
