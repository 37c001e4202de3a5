"""From finished runs to the data of the report page."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ipg.evaluation.groups import predict
from ipg.methods import method_class
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


def page_data(
    runs: Sequence[Run], *, title: str = "Robustness to a shortcut", shortcut: str = "", command: str = ""
) -> PageData:
    """What the page shows of `runs`: plain training counts as before, guided training as after.

    Args:
        runs: finished runs on the same data.
        title: begins the headline; the page adds the accuracies before and after.
        shortcut: one or two sentences on what the shortcut is.
        command: the command line that makes the page again, where there is one.

    Raises:
        ValueError: there are no runs, or they are on different data sets.
    """
    names = sorted({run.materials.table.name for run in runs})
    if len(names) != 1:
        given = f"these runs are on different data sets ({', '.join(names)})" if names else "there are no runs"
        raise ValueError(f"{given}; a report is on runs of one data set")
    views = [_view(run, name) for run, name in zip(runs, _names(runs), strict=True)]
    with_pairs = [run for run in runs if run.materials.pairs is not None]
    guided = min(with_pairs, key=lambda run: run.config.method != "ipg", default=None)  # the one compared, if there
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
        command=command,
        environment={
            **{name: str(version) for name, version in result["versions"].items()},
            "hardware": str(result["hardware"]),
            "commit": str(result["commit"] or "unknown"),
            "date": str(result["date"]),
        },
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each run; where two are of one method, a number tells them apart: `Plain training 2 (ERM)`."""
    methods = [run.config.method for run in runs]
    names = []
    for position, method in enumerate(methods):
        words, bracket, short = NAMES.get(method, method).partition(" (")
        number = f" {methods[:position].count(method) + 1}" if methods.count(method) > 1 else ""
        names.append(f"{words}{number}{bracket}{short}")
    return names


def _view(run: Run, name: str) -> RunView:
    method = run.config.method
    role = "before" if method == "erm" else "after" if method == "ipg" else "reference"
    return RunView(name, method, run.result["config"], run.epochs, run.result, role)  # type: ignore[arg-type]


def _gallery(pairs: PairSet, classes: Sequence[str]) -> list[tuple[Tensor, Tensor, str]]:
    """Some pairs, taking turns between the labels."""
    rows = _in_turns(pairs.label.cpu(), torch.arange(len(pairs)), GALLERY)
    return [(pairs.first[row].cpu(), pairs.second[row].cpu(), classes[int(pairs.label[row])]) for row in rows]


def _flips(runs: Sequence[Run], views: Sequence[RunView]) -> list[Flip]:
    """Held-out pairs on which plain training changes its mind and guided training is right about both members.

    Runs whose held-out pairs are others (another seed, another number of them) have nothing to say of these.
    """
    roles = [view.role for view in views]
    if "before" not in roles or "after" not in roles:
        return []
    before, after = roles.index("before"), roles.index("after")
    shown = runs[before].materials.held_out
    if shown is None or not _measures_on(runs[after], shown):
        return []
    predictions = {n: _pair_predictions(run, shown) for n, run in enumerate(runs) if _measures_on(run, shown)}
    label = shown.label.cpu()
    flips = predictions[before][0] != predictions[before][1]
    right = (predictions[after][0] == label) & (predictions[after][1] == label)
    classes = runs[before].materials.table.classes

    def named(classified: Tensor, row: int) -> str:
        return classes[int(classified[row])]

    return [
        Flip(
            shown.first[row].cpu(),
            shown.second[row].cpu(),
            classes[int(label[row])],
            {views[n].name: (named(first, row), named(second, row)) for n, (first, second) in predictions.items()},
        )
        for row in _in_turns(label, torch.nonzero(flips & right).flatten(), FLIPS)
    ]


def _as_seen(run: Run, pairs: PairSet) -> PairSet:
    """The pairs as the method of `run` sees them, on the CPU."""
    return pairs.to("cpu").map(method_class(run.config.method).transform)


def _measures_on(run: Run, shown: PairSet) -> bool:
    """Whether the held-out pairs of `run` are those `shown`."""
    own = run.materials.held_out
    if own is None:
        return False
    seen = _as_seen(run, shown)
    return all(torch.equal(a.cpu(), b) for a, b in ((own.first, seen.first), (own.second, seen.second)))


def _pair_predictions(run: Run, shown: PairSet) -> tuple[Tensor, Tensor]:
    """The classes that a run gives the first and the second members of the pairs."""
    pairs = _as_seen(run, shown).to(next(run.model.parameters()).device)
    autocast = autocast_dtype(run.config)
    first, second = (predict(run.model, images, autocast=autocast).cpu() for images in (pairs.first, pairs.second))
    return first, second


def _in_turns(label: Tensor, rows: Tensor, count: int) -> list[int]:
    """Up to `count` of `rows`, one of each label after the other."""
    queues = [[row for row in rows.tolist() if int(label[row]) == value] for value in sorted(set(label.tolist()))]
    turns = [queue[turn] for turn in range(count) for queue in queues if turn < len(queue)]
    return turns[:count]
