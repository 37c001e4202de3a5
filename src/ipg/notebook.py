"""Training in one call, for notebooks and scripts: `run = ipg.fit(...)`, `run.evaluate()`, `run.report()`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.groups import evaluate
from ipg.evaluation.pairs import pair_disagreement
from ipg.methods import method_class
from ipg.pairs.pairset import PairSet
from ipg.training.checkpoint import load_checkpoint
from ipg.training.device import autocast_dtype, resolve_device
from ipg.training.folder import FolderError, RunFolder, read_json
from ipg.training.listeners import Listener
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials, gather

__all__ = ["Run", "fit"]


@dataclass(frozen=True)
class Run:
    """A finished run: its network, its numbers, and what it was trained on."""

    config: RunConfig
    materials: Materials
    outcome: Outcome

    @property
    def model(self) -> nn.Module:
        """The network with the weights of the kept epoch."""
        return self.outcome.model

    @property
    def result(self) -> dict[str, Any]:
        """Metrics, settings and origin, as in `result.json`."""
        return self.outcome.result

    @property
    def epochs(self) -> Sequence[dict[str, Any]]:
        """A row an epoch, as in `metrics.jsonl`."""
        return self.outcome.rows

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Accuracy on average, by group and in the worst group, and disagreement on held-out pairs."""
        device = next(self.model.parameters()).device
        autocast = autocast_dtype(self.config)
        held_out = self.materials.held_out
        return evaluate(self.model, self.materials.table.part(split).to(device), autocast=autocast) | {
            "pair_disagreement": pair_disagreement(
                self.model, held_out.to(device) if held_out is not None else None, autocast=autocast
            )
        }

    def report(self, path: str | Path = "report.html", *, beside: Sequence[Run] = ()) -> Path:
        """Write the report, one self-contained HTML page, on this run and those `beside` it."""
        from ipg.report.build import page_data
        from ipg.report.page import write

        return write(Path(path), page_data([*beside, self]))

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", data_path: str | None = None) -> Run:
        """Read a finished run back from its folder; the data is loaded again, and has to be the same.

        Args:
            folder: what `ipg train` wrote.
            device: where the network goes.
            data_path: where the data set's files are, if not where they were.
        """
        home = RunFolder(Path(folder))
        if not home.config.exists():
            raise FolderError(f"{home.path} is not the folder of a run: it has no config.json")
        if not home.done.exists():
            raise FolderError(f"the run in {home.path} is not finished; the command that began it goes on with it")
        stored = read_json(home.config)
        origin = stored.get("origin", {})
        if not origin.get("named"):
            raise FolderError(f"{home.path} was trained on objects of your own; evaluate it where they are")
        config = _config_of(stored, home.config)
        config = config.with_changes(device=device, data_path=data_path or origin.get("data_path"))
        materials = gather(config)
        now, then = materials.fingerprints(), stored.get("data", {})
        if changed := [name for name, digest in now.items() if then.get(name) != digest]:
            raise FolderError(f"the data has changed since {home.path} was trained on it ({', '.join(changed)} differ)")
        model = materials.model.to(resolve_device(device)).eval()
        model.load_state_dict(load_checkpoint(home.model))
        rows = [json.loads(line) for line in home.metrics.read_text(encoding="utf-8").splitlines()]
        return cls(config, materials, Outcome(model, rows, read_json(home.result)))


def fit(
    model: nn.Module | str | None = None,
    data: ImageTable | str = "colored_fashion",
    pairs: PairSet | int | None = None,
    *,
    method: str = "ipg",
    held_out: PairSet | None = None,
    folder: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Run:
    """Train a classifier and return the finished run.

    Args:
        model: a network of your own with a linear head, or the name of one; what suits the data where not given.
        data: your images as an `ImageTable`, or the name of a data set.
        pairs: your invariance pairs, or how many to build.
        method: `ipg`, or another of `ipg methods`.
        held_out: pairs of validation images to measure disagreement on; built where the data has a name.
        folder: where to keep the run, so that it can be resumed; nowhere if not given.
        listeners: who is told of its progress.
        settings: any further field of `ipg.config.RunConfig`, e.g. `epochs=10, alpha=0.2`.
    """
    values = {"method": method, **settings}
    if isinstance(model, str):
        values["model"] = model
    if isinstance(data, str):
        values["data"] = data
    if isinstance(pairs, int):
        values["pairs"] = pairs
    config = RunConfig.from_mapping(values)
    table = data if isinstance(data, ImageTable) else None
    if isinstance(model, nn.Module) or isinstance(pairs, PairSet):
        materials = _own(config, model, table, pairs, held_out)
    else:
        materials = gather(config, table=table)
    where = Path(folder) if folder is not None else None
    return Run(config, materials, train(config, materials, folder=where, listeners=listeners))


def _own(
    config: RunConfig,
    model: nn.Module | str | None,
    table: ImageTable | None,
    pairs: PairSet | int | None,
    held_out: PairSet | None,
) -> Materials:
    """Materials in which what the caller gave takes the place of what would be made."""
    own_pairs = pairs if isinstance(pairs, PairSet) else None
    made = gather(config.with_changes(pairs=0, held_out_pairs=0) if own_pairs is not None else config, table=table)
    transform = method_class(config.method).transform
    return Materials(
        made.table,
        model.to(torch.device("cpu")) if isinstance(model, nn.Module) else made.model,
        own_pairs.map(transform) if own_pairs is not None else made.pairs,
        held_out.map(transform) if held_out is not None else made.held_out,
    )


def _config_of(stored: dict[str, Any], path: Path) -> RunConfig:
    """The configuration in a run's `config.json`, whose flat values hold the method's own options too."""
    flat = stored.get("config")
    if not isinstance(flat, dict):
        raise FolderError(f"{path} is damaged: it holds no configuration")
    known = set(RunConfig.__dataclass_fields__)
    options = {name: value for name, value in flat.items() if name not in known}
    return RunConfig.from_mapping({name: value for name, value in flat.items() if name in known} | {"options": options})
