"""One trial: train, evaluate, and put all that was measured into a row."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ipg.config import RunConfig
from ipg.evaluation.groups import predict
from ipg.experiments.study import ELSEWHERE, Trial
from ipg.training.device import autocast_dtype
from ipg.training.listeners import Listener
from ipg.training.loop import train
from ipg.training.materials import gather, suited_model
from ipg.training.start import network_name

__all__ = ["run_trial"]


def run_trial(
    trial: Trial,
    *,
    metrics_split: str = "test",
    folder: Path | None = None,
    tell: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run one trial; a trial whose rows do not report the test split never evaluates it.

    Args:
        trial: what to run.
        metrics_split: the split that the row reports.
        folder: where the run lives. A run found there goes on where it stopped.
        tell: is told now and then which share of the iterations is done.
    """
    config = trial.config
    materials = gather(config)
    listeners = [] if tell is None else [_Teller(tell)]
    outcome = train(config, materials, folder=folder, listeners=listeners, evaluate_on=("validation", metrics_split))
    result = outcome.result
    selected = next(row for row in outcome.rows if row["epoch"] == result["selected_epoch"])
    part = materials.table.part(metrics_split)
    device = next(outcome.model.parameters()).device
    predictions = predict(outcome.model, part.images.to(device), autocast=autocast_dtype(config))
    settled = {name: value for name, value in result["config"].items() if name not in ("seed", *ELSEWHERE)}
    settled["model"] = config.model or network_name(config, materials.model) or suited_model(materials.table)
    if isinstance(config.pairs, str):
        pairs = materials.pairs
        settled |= {"pair_file": config.pairs, "pairs": 0 if pairs is None else len(pairs)}
        settled["pair_builder"] = None if pairs is None else pairs.builder

    def metrics(row: dict[str, Any]) -> dict[str, Any]:
        return {**row[metrics_split], "pair_disagreement": row["pair_disagreement"]}

    return {
        "key": trial.key,
        "study": trial.study,
        "dataset": trial.dataset,
        "method": trial.method,
        "protocol": trial.protocol,
        "seed": trial.seed,
        "config": {"weights": None, **settled},
        "selection": result["selection"],
        "split": metrics_split,
        "selected_epoch": result["selected_epoch"],
        "metrics": metrics(selected),
        "predictions": _pack(predictions.cpu().numpy(), part.num_classes),
        "last_metrics": metrics(outcome.rows[-1]),
        "curve": [row[metrics_split]["average"] for row in outcome.rows],
        "seconds": result["seconds"],
        "preparing_seconds": result["preparing_seconds"],
        **{name: result[name] for name in ("hardware", "versions", "commit", "date")},
    }


class _Teller(Listener):
    """Passes on how far a run is."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        self._total = total
        self._tell(step / total)

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(step / self._total)


def _pack(predictions: np.ndarray[Any, Any], classes: int) -> str:
    """Predicted classes as base64: eight a byte where there are two classes, else one a byte (at most 256)."""
    packed = np.packbits(predictions.astype(bool)) if classes == 2 else predictions.astype(np.uint8)
    return base64.b64encode(packed.tobytes()).decode()
