"""Accuracy on average, by class, by group and by environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ipg.comparison import is_compiled
from ipg.data.table import ImageTable
from ipg.rationale import predicted_class

__all__ = ["evaluate", "evaluating", "group_metrics", "predict"]

EVALUATION_BATCH = 1024
EVALUATION_BATCH_CPU = 128
"""On a CPU larger batches take longer, up to half as long again: their activations are new memory every time."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the mode of every module is as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns: a tensor, an object with `logits`, or a tuple that begins with them."""
    if isinstance(output, Tensor):
        return output
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits


def predict(model: nn.Module, images: Tensor, *, autocast: torch.dtype | None = None) -> Tensor:
    """The class that `model` gives each of the uint8 `images`, (N,).

    A compiled model is given batches of one size, the last one filled up: another size would be compiled for itself.
    """
    place = next(model.parameters(), images).device
    size = EVALUATION_BATCH_CPU if place.type == "cpu" else EVALUATION_BATCH
    count = len(images)
    if is_compiled(model) and (missing := -count % size):
        images = torch.cat([images, images[-1:].expand(missing, -1, -1, -1)])
    with evaluating(model), torch.autocast(place.type, dtype=autocast, enabled=autocast is not None):
        batches = (batch.to(place).float() / 255 for batch in torch.split(images, size))  # at least one, if of none
        return torch.cat([predicted_class(logits_of(model(batch))) for batch in batches])[:count]


def evaluate(model: nn.Module, table: ImageTable, *, autocast: torch.dtype | None = None) -> dict[str, Any]:
    """All group metrics of `model` on `table`, as Python numbers."""
    return group_metrics(predict(model, table.images, autocast=autocast), table)


def group_metrics(predictions: Tensor, table: ImageTable) -> dict[str, Any]:
    """Metrics of `predictions` (N,) against the rows of `table`; fractions, None where there is no image.

    Returns:
        `average` over samples; `group_mean`, the unweighted mean over the groups that have images; `worst_group`
        among those; `balanced`, the unweighted mean over classes; `predicted_classes`, how many are ever predicted (a
        collapsed model predicts one); `groups`, name to accuracy and count; and
        `environments`, number to accuracy and count.
    """
    right = predictions == table.label
    by_group = _shares(right, table.group, len(table.group_names))
    by_class = _shares(right, table.label, table.num_classes)
    by_environment = _shares(right, table.environment, int(table.environment.max()) + 1 if len(table) else 0)
    groups = [share for share, _ in by_group if share is not None]
    classes = [share for share, _ in by_class if share is not None]
    return {
        "average": float(right.double().mean()) if len(table) else None,
        "group_mean": _mean(groups),
        "worst_group": min(groups, default=None),
        "balanced": _mean(classes),
        "predicted_classes": len(set(predictions.tolist())),
        "groups": {
            name: {"accuracy": share, "count": count}
            for name, (share, count) in zip(table.group_names, by_group, strict=True)
        },
        "environments": {
            str(number): {"accuracy": share, "count": count}
            for number, (share, count) in enumerate(by_environment)
            if count
        },
    }


def _shares(right: Tensor, key: Tensor, size: int) -> list[tuple[float | None, int]]:
    """Share of `right` and number of rows for each value of `key`."""
    counts = torch.stack([torch.bincount(key, minlength=size), torch.bincount(key[right], minlength=size)]).tolist()
    return [(hits / total if total else None, total) for total, hits in zip(*counts, strict=True)]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
