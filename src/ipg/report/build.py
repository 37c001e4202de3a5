"""From finished runs to the data of the report page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from ipg.evaluation.groups import predict
from ipg.notebook import Run
from ipg.pairs.pairset import PairSet
from ipg.report.page import Flip, PageData, RunView
from ipg.training.device import autocast_dtype

__all__ = ["page_data"]

NAMES = {
    "erm": "Plain training (ERM)",
    "oracle": "Without colour (oracle)",
    "ipg": "Guided by pairs (IPG)",
    "joint": "Joint (no rescaling)",
    "continuous": "Continuous correction",
}
GALLERY = 24
FLIPS = 8


def page_data(runs: Sequence[Run], *, title: str = "Robustness to a shortcut", shortcut: str = "") -> PageData:
    """What the page shows of `runs`: plain training counts as before, guided training as after.

    Args:
        runs: finished runs on the same data.
        title: begins the headline; the page adds the accuracies before and after.
        shortcut: one or two sentences on what the shortcut is.
    """
    views = [_view(run, name) for run, name in zip(runs, _names(runs), strict=True)]
    guided = next((run for run in runs if run.materials.pairs is not None), None)
    pairs = guided.materials.pairs if guided is not None else None
    classes = runs[0].materials.table.classes
    gallery = [] if pairs is None else _gallery(pairs, classes)
    result = runs[-1].result
    return PageData(
        title=title,
        shortcut=shortcut,
        runs=views,
        pairs=gallery,
        pair_count=len(pairs) if pairs is not None else 0,
        train_count=len(runs[0].materials.table.indices("train")),
        flips=_flips(runs, views),
        command=shlex.join(["ipg", *sys.argv[1:]]) if _is_command() else "",
        environment={
            **{name: str(version) for name, version in result["versions"].items()},
            "hardware": str(result["hardware"]),
            "commit": str(result["commit"] or "unknown"),
            "date": str(result["date"]),
        },
    )


def _is_command() -> bool:
    return sys.argv[0].endswith(("ipg", "__main__.py"))


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each run, told apart by number where two are of one method."""
    plain = [NAMES.get(run.config.method, run.config.method) for run in runs]
    return [
        f"{name} {plain[:position].count(name) + 1}" if plain.count(name) > 1 else name
        for position, name in enumerate(plain)
    ]


def _view(run: Run, name: str) -> RunView:
    method = run.config.method
    role = "before" if method == "erm" else "after" if method == "ipg" else "reference"
    return RunView(name, method, run.result["config"], run.epochs, run.result, role)  # type: ignore[arg-type]


def _gallery(pairs: PairSet, classes: Sequence[str]) -> list[tuple[Tensor, Tensor, str]]:
    """Some pairs, taking turns between the labels."""
    rows = _in_turns(pairs.label.cpu(), torch.arange(len(pairs)), GALLERY)
    return [(pairs.first[row].cpu(), pairs.second[row].cpu(), classes[int(pairs.label[row])]) for row in rows]


def _flips(runs: Sequence[Run], views: Sequence[RunView]) -> list[Flip]:
    """Held-out pairs on which plain training changes its mind and guided training is right about both members."""
    before = next((n for n, view in enumerate(views) if view.role == "before"), None)
    after = next((n for n, view in enumerate(views) if view.role == "after"), None)
    if before is None or after is None or any(run.materials.held_out is None for run in runs):
        return []
    predictions = [_pair_predictions(run) for run in runs]
    shown = runs[before].materials.held_out
    if shown is None or any(len(first) != len(shown) for first, _ in predictions):
        return []
    label = shown.label.cpu()
    flips = predictions[before][0] != predictions[before][1]
    right = (predictions[after][0] == label) & (predictions[after][1] == label)
    classes = runs[0].materials.table.classes

    def named(classified: Tensor, row: int) -> str:
        return classes[int(classified[row])]

    return [
        Flip(
            shown.first[row].cpu(),
            shown.second[row].cpu(),
            classes[int(label[row])],
            {
                view.name: (named(first, row), named(second, row))
                for view, (first, second) in zip(views, predictions, strict=True)
            },
        )
        for row in _in_turns(label, torch.nonzero(flips & right).flatten(), FLIPS)
    ]


def _pair_predictions(run: Run) -> tuple[Tensor, Tensor]:
    """The classes that a run gives the first and the second members of its held-out pairs."""
    held_out = run.materials.held_out
    if held_out is None:
        raise ValueError("the run has no held-out pairs")
    device = next(run.model.parameters()).device
    autocast = autocast_dtype(run.config)
    first, second = (
        predict(run.model, images.to(device), autocast=autocast).cpu() for images in (held_out.first, held_out.second)
    )
    return first, second


def _in_turns(label: Tensor, rows: Tensor, count: int) -> list[int]:
    """Up to `count` of `rows`, one of each label after the other."""
    queues = [[row for row in rows.tolist() if int(label[row]) == value] for value in label.unique().tolist()]
    turns = [queue[turn] for turn in range(count) for queue in queues if turn < len(queue)]
    return turns[:count]
