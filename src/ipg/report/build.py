"""From finished runs to the data of the report page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ipg.data.table import ImageTable
from ipg.notebook import Run
from ipg.pairs.pairset import PairSet
from ipg.report.attribution import INSTALL, available
from ipg.report.looks import find_looks
from ipg.report.page import Flip, PageData, RunView
from ipg.report.pair_answers import answers, find_flips, in_turns
from ipg.report.results import compared
from ipg.report.verdict import Evidence
from ipg.restarts import rate_after
from ipg.words import number_of

__all__ = ["NAMES", "page_data"]

NAMES = {
    "erm": "Plain training (ERM)",
    "oracle": "Without colour (oracle)",
    "ipg": "Guided by pairs (IPG)",
    "joint": "Joint (no rescaling)",
    "continuous": "Continuous correction",
    "groupdro": "Group DRO",
    "rwg": "Reweighted groups (RWG)",
    "subg": "Subsampled groups (SUBG)",
    "pair_augmentation": "Pairs as images",
    "pair_contrastive": "Pairs, contrastive",
    "joint_weighted": "Joint, weighted",
    "dair": "DAIR",
    "jtt": "Just Train Twice (JTT)",
    "dfr": "Deep feature reweighting (DFR)",
    "lff": "Learning from failure (LfF)",
    "eva_e": "Erased evidence (EvA-E, re-derived)",
    "dkt": "Knowledge transfer (DKT, re-derived)",
    "epg": "Energy in the box (EPG)",
    "gals": "Attention by language (GALS)",
    "gals_mask": "Attention by masks (GALS-mask)",
    "vrex": "V-REx",
    "irm": "IRM",
    "meta_irm": "meta-IRM",
    "ncm": "Noisy counterfactual matching (NCM)",
    "shape_only": "Shape alone",
    "fishr": "Fishr",
    "coral": "CORAL",
    "ridg": "Rationale invariance (RIDG)",
    "cggd": "CGGD",
}
GALLERY = 24
FLIPS = 9


def page_data(
    runs: Sequence[Run],
    *,
    title: str = "Robustness to a shortcut",
    shortcut: str = "",
    command: str = "",
    folders: Sequence[Path] = (),
) -> PageData:
    """What the page shows of `runs`: plain training counts as before, guided training as after.

    Args:
        runs: finished runs on the same data.
        title: begins the headline; the page adds the accuracies in the worst group before and after.
        shortcut: one or two sentences on what the shortcut is; its values, where not given.
        command: the command line that makes the page again, where there is one.
        folders: of the runs, by which a reader knows them; none where they have none.

    Raises:
        ValueError: there are no runs, or they are on different data sets.
    """
    names = sorted({run.materials.table.name for run in runs})
    if len(names) != 1:
        given = f"these runs are on different data sets ({', '.join(names)})" if names else "there are no runs"
        raise ValueError(f"{given}; a report is on runs of one data set")
    table = runs[0].materials.table
    kept = _folder_names(folders) if folders else [""] * len(runs)
    views = [_view(*about) for about in zip(runs, _names(runs), kept, strict=True)]
    flips = _flips(runs, views)
    with_pairs = [n for n, run in enumerate(runs) if run.materials.pairs is not None]
    guided = min(with_pairs, key=lambda n: runs[n].config.method != "ipg", default=None)  # the one compared, if there
    pairs = runs[guided].materials.pairs if guided is not None else None
    gallery = [] if pairs is None else _gallery(pairs, table.classes)
    return PageData(
        title=title,
        shortcut=shortcut or _shortcut(table),
        runs=views,
        pairs=gallery,
        pair_count=len(pairs) if pairs is not None else 0,
        pairs_of=views[guided].name if guided is not None and len(with_pairs) > 1 else "",
        train_count=len(table.indices("train")),
        flips=flips,
        command=command,
        environment=_environment([run.result for run in runs]),
        evidence=_evidence(runs),
        looks=find_looks({views[n].name: runs[n] for n in compared(views)}, flips) if available() else [],
        looks_install="" if available() else INSTALL,
    )


def _evidence(runs: Sequence[Run]) -> Evidence:
    """What the test images of `runs` can tell."""
    table = runs[0].materials.table
    known = [run for run in runs if "test" in run.materials.table.splits]
    groups = set(table.group[table.indices("test")].tolist()) if known else set()
    return Evidence(
        grouped=len(table.attributes) > 1,
        parted=len(groups) > len({group // len(table.attributes) for group in groups}),
        alike=len({run.images_of("test") for run in known}) < 2,
        classes=table.num_classes,
    )


def _shortcut(table: ImageTable) -> str:
    """What the shortcut is as far as the data says: its few values, or nothing."""
    values = table.attributes
    if not 1 < len(values) <= 6:
        return ""
    return f"What must not matter: {', '.join(values[:-1])} or {values[-1]}."


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each run; where two are of one method, a number tells them apart: `Plain training 2 (ERM)`."""
    methods = [run.config.method for run in runs]
    names = []
    for position, method in enumerate(methods):
        words, bracket, short = NAMES.get(method, method).partition(" (")
        number = f" {methods[:position].count(method) + 1}" if methods.count(method) > 1 else ""
        names.append(f"{words}{number}{bracket}{short}")
    return names


def _folder_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or all of it where that would not tell them apart."""
    last = [(folder.resolve() if folder.name in ("", "..") else folder).name for folder in folders]
    return last if len(set(last)) == len(last) else [str(folder) for folder in folders]


def _view(run: Run, name: str, folder: str) -> RunView:
    method = run.config.method
    role = "before" if method == "erm" else "after" if method == "ipg" else "reference"
    result = {**run.result, "metrics": _named_by_class(run.result.get("metrics"), run.materials.table)}
    return RunView(
        name,
        method,
        run.result["config"] | _pairs_there(run) | _last_rate(run),
        run.epochs,
        result,
        role,  # type: ignore[arg-type]
        answers(run),
        folder,
    )


def _last_rate(run: Run) -> dict[str, object]:
    """The learning rate of a run that began again: what was asked for, and what it ended with."""
    restarts, rate = run.result.get("restarted", 0), run.result["config"].get("learning_rate")
    if not restarts or rate is None:
        return {}
    return {"learning_rate": f"{rate:g} ({rate_after(rate, restarts):g} after {number_of(restarts, 'restart')})"}


def _pairs_there(run: Run) -> dict[str, object]:
    """What the settings of a run say of pairs that it read from a file: how those were made, and how many there are."""
    if not isinstance(run.config.pairs, str):
        return {}
    guide, held_out = run.materials.pairs, run.materials.held_out
    builders = {name for pairs in (guide, held_out) if pairs is not None for name in pairs.builder.split("+")}
    return {
        "pairs": f"{run.result['config']['pairs']} ({0 if guide is None else len(guide)})",
        "pair_builder": "+".join(sorted(builders)) or None,
        "held_out_pairs": 0 if held_out is None else len(held_out),
    }


def _named_by_class(metrics: Mapping[str, Any] | None, table: ImageTable) -> Mapping[str, Any] | None:
    """Where all images are of one attribute, the groups of `metrics` by the name of the class alone."""
    if not metrics or len(table.attributes) > 1:
        return metrics
    ending = f", {table.attributes[0]}"
    return {
        **metrics,
        "groups": {name.removesuffix(ending): row for name, row in (metrics.get("groups") or {}).items()},
    }


def _gallery(pairs: PairSet, classes: Sequence[str]) -> list[tuple[Tensor, Tensor, str]]:
    """Some pairs, taking turns between the labels."""
    rows = in_turns(pairs.label.cpu(), torch.arange(len(pairs)))[:GALLERY]
    return [(pairs.first[row].cpu(), pairs.second[row].cpu(), classes[int(pairs.label[row])]) for row in rows]


def _flips(runs: Sequence[Run], views: Sequence[RunView]) -> list[Flip]:
    """Held-out pairs on which plain training changes its mind and guided training is right about both members."""
    roles = [view.role for view in views]
    if "before" not in roles or "after" not in roles:
        return []
    names = [view.name for view in views]
    return find_flips(runs, names, roles.index("before"), roles.index("after"))[:FLIPS]


def _environment(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Where the runs come from; of those that differ in something all that there is."""
    told = [
        {**result["versions"], **{name: result[name] or "unknown" for name in ("hardware", "commit", "date")}}
        for result in results
    ]
    names = dict.fromkeys(name for each in told for name in each)
    return {name: ", ".join(dict.fromkeys(str(each[name]) for each in told if name in each)) for name in names}
