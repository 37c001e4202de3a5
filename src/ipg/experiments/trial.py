"""One trial: train, evaluate, and put all that was measured into a row."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipg.config import RunConfig
from ipg.evaluation.groups import logits, metrics, predict
from ipg.evaluation.pairs import pair_disagreement
from ipg.experiments.ablations import gather_trial
from ipg.experiments.study import ELSEWHERE, Trial
from ipg.guidance import CollapseError, NonFiniteError
from ipg.rationale import predicted_class
from ipg.training.device import autocast_dtype, numerics, resolve_device
from ipg.training.engine import resolve
from ipg.training.identity import settled
from ipg.training.listeners import Listener
from ipg.training.loop import train
from ipg.training.materials import Materials, suited_model
from ipg.training.provenance import provenance
from ipg.training.start import as_started, network_name

__all__ = ["run_trial"]


def run_trial(
    trial: Trial,
    *,
    metrics_split: str = "test",
    folder: Path | None = None,
    tell: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run one trial. The test split is not evaluated before training is over, and never where rows do not report it.

    Where the training environments keep the epoch, which rewards the shortcut, it is evaluated after each: the row has
    the whole curve.

    A run that collapses, or whose loss is no longer a number, has a row, too, that of the network as it stands; one
    that breaks off in its first stage has no such network, and its metrics are null.

    Args:
        trial: what to run.
        metrics_split: the split that the row reports.
        folder: where the run lives. A run found there goes on where it stopped.
        tell: is told now and then which share of the iterations is done.
    """
    config = as_started(trial.config)
    materials = gather_trial(config)
    teller = _Teller(tell)
    begun = time.perf_counter()
    try:
        outcome = train(
            config,
            materials,
            folder=folder,
            listeners=[teller],
            evaluate_on=("validation", *([metrics_split] if _is_followed(config) else [])),
            evaluate_once=(metrics_split,),
        )
    except (CollapseError, NonFiniteError) as error:
        seconds = teller.seconds or round(time.perf_counter() - begun, 3)  # not told of a first stage
        return _collapsed(trial, config, materials, metrics_split, str(error), seconds, teller)
    result = outcome.result
    selected = next(row for row in outcome.rows if row["epoch"] == result["selected_epoch"])
    part = materials.table.part(metrics_split)
    with numerics(config, resolve_device(config.device)):
        predictions = predict(outcome.model, part.images, autocast=autocast_dtype(config))

    def told(row: dict[str, Any]) -> dict[str, Any]:
        return {**row[metrics_split], "pair_disagreement": row["pair_disagreement"]}

    return {
        **_identity(trial, materials, result["config"], metrics_split),
        "selected_epoch": result["selected_epoch"],
        **{name: result[name] for name in ("refitted_epoch", "restarted") if name in result},
        "metrics": told(selected),
        "predictions": _pack(predictions.cpu().numpy(), part.num_classes),
        "last_metrics": told(outcome.rows[-1]),
        "curve": [row[metrics_split]["average"] if metrics_split in row else None for row in outcome.rows],
        "validation_curve": [row["validation"]["average"] for row in outcome.rows],
        "seconds": result["seconds"],
        "preparing_seconds": result["preparing_seconds"],
        **{name: result[name] for name in ("hardware", "versions", "commit", "date")},
    }


def _is_followed(config: RunConfig) -> bool:
    """Whether what a row reports is to be known of every epoch."""
    return config.selection == "training_environments"


def _identity(trial: Trial, materials: Materials, config: Mapping[str, Any], split: str) -> dict[str, Any]:
    """What a row says of its trial."""
    given = trial.config
    known = {name: value for name, value in config.items() if name not in ("seed", *ELSEWHERE)}
    found = network_name(given, materials.model) or getattr(materials.model, "name", None)
    known["model"] = given.model or found or suited_model(materials.table)
    if isinstance(given.pairs, str):
        pairs = materials.pairs
        known |= {"pair_file": given.pairs, "pairs": 0 if pairs is None else len(pairs)}
        known["pair_builder"] = None if pairs is None else pairs.builder
    return {
        **trial.identity,
        "config": {"weights": None, **known},
        "selection": given.selection,
        "split": split,
    }


def _collapsed(
    trial: Trial, config: RunConfig, materials: Materials, split: str, why: str, seconds: float, teller: _Teller
) -> dict[str, Any]:
    """The row of a run that collapsed or diverged: its network as it stands, so that no table leaves it out.

    Where that is not trained at all, the metrics are those of no image: all null.
    """
    model, trained = materials.model, not teller.in_first_stage
    meant = resolve_device(config.device)
    device = next(model.parameters()).device  # another, where it was not trained
    autocast = autocast_dtype(config)
    part = materials.table.part(split).to(device, images=False)
    held_out = None if materials.held_out is None or not trained else materials.held_out.to(device)
    if trained:
        said = logits(model, part.images, autocast=autocast)
    else:
        part, said = part.take(torch.arange(0)), torch.zeros(0, part.num_classes, device=device)
    found = metrics(said, part, training=materials.table.part("train"))
    found |= {"pair_disagreement": pair_disagreement(model, held_out, autocast=autocast)}
    return {
        **_identity(trial, materials, settled(resolve(config, meant, processes=1)), split),
        "selected_epoch": None,
        **({"restarted": teller.restarts} if teller.restarts else {}),
        "collapse": why,
        "metrics": found,
        "predictions": _pack(predicted_class(said).cpu().numpy(), part.num_classes),
        "last_metrics": found,
        "curve": [],
        "validation_curve": [],
        "seconds": seconds,
        **provenance(meant),
    }


class _Teller(Listener):
    """Passes on how far a run is; knows whether it is in its first stage, and restarts and time of one that failed."""

    def __init__(self, tell: Callable[[float], None] | None) -> None:
        self._tell = tell or (lambda share: None)
        self.in_first_stage = False
        self.restarts = 0
        self.seconds: float | None = None

    def first_stage(self, *, step: int, total: int) -> None:
        self.in_first_stage = True

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        self.in_first_stage = False
        self._total = total
        self._tell(step / total)

    def failed(self, error: Exception, *, restarts: int, seconds: float) -> None:
        self.restarts, self.seconds = restarts, seconds

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(step / self._total)


def _pack(predictions: np.ndarray[Any, Any], classes: int) -> str:
    """Predicted classes as base64: eight a byte where there are two classes, one a byte up to 256, else one in two."""
    one_each = predictions.astype("u1" if classes <= 256 else "<u2")
    packed = np.packbits(predictions.astype(bool)) if classes == 2 else one_each
    return base64.b64encode(packed.tobytes()).decode()
