"""Galleries of pairs: some of every strategy and data set, rejected ones included, for the user's folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ipg.config import RunConfig
from ipg.data.errors import DataError
from ipg.data.load import load
from ipg.experiments.reproduce.plan import shared
from ipg.experiments.reproduce.rows import beside, data_obstacle
from ipg.files import write_text
from ipg.pairs.audit import audit
from ipg.pairs.references import References
from ipg.pairs.rows import Manifest
from ipg.pairs.sheet import cards, write
from ipg.report.figures import draw_pair_grid, pair_grid_data
from ipg.training.materials import gather

__all__ = ["gallery"]

NAMES = {"recolored": "perfect"}
"""Builders as the paper calls them."""


def gallery(entry: Mapping[str, Any], count: int, folder: Path, path: str | None) -> tuple[list[Path], list[str]]:
    """Write the galleries of one data set; the files, and a sentence on each that cannot be made here."""
    dataset: str = entry["dataset"]
    made, missing = [], []
    for builder in entry.get("builders", ()):
        try:
            made.append(_built(dataset, builder, count, folder, path))
        except DataError as error:
            missing.append(f"{dataset}, {builder}: {error}")
    files = entry.get("files", ())
    if files and (why := data_obstacle(dataset, path)) is not None:
        return made, [*missing, f"{dataset}: {why}"]
    for name in files:
        if (found := beside(name, path)) is None:
            what = shared()["files"].get(name, "pairs by `ipg pairs build`")
            missing.append(f"{dataset}: there is no {name} beside the data; it holds {what}")
        else:
            made.append(_sheet(dataset, found, count, folder, path))
    return made, missing


def _built(dataset: str, builder: str, count: int, folder: Path, path: str | None) -> Path:
    """A picture of `count` pairs that a builder makes."""
    epochs = 1 if builder == "closest" else 6
    config = RunConfig(data=dataset, data_path=path, pairs=count, held_out_pairs=0, pair_builder=builder, epochs=epochs)
    materials = gather(config)
    pairs, classes = materials.pairs, materials.table.classes
    if pairs is None:
        raise DataError("there are no pairs")
    rows = torch.arange(len(pairs))
    shown = [(pairs.first[row], pairs.second[row], classes[int(pairs.label[row])]) for row in rows.tolist()]
    file = folder / f"{dataset}-{NAMES.get(builder, builder)}.svg"
    return write_text(file, draw_pair_grid(pair_grid_data(shown)))


def _sheet(dataset: str, pairs: Path, count: int, folder: Path, path: str | None) -> Path:
    """A page of pairs from a manifest: where any are rejected, those with the lowest scores first.

    Pairs that nobody has judged are audited for it, and their manifest stays as it is.
    """
    manifest, table = Manifest.read(pairs), load(dataset, path=path)
    if not any(pair.status for pair in manifest.pairs):
        manifest = audit(manifest, table)
    rejected = any(pair.status == "rejected" for pair in manifest.pairs)
    shown = cards(manifest, References(manifest.folder, table), count=count, worst=rejected)
    return write(folder / f"{dataset}-{pairs.name}.html", manifest, shown)
