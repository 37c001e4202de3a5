"""Accuracy on average, by class, by group and by environment, and how far a network's confidence is to be believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ipg.collectives import in_shards
from ipg.comparison import is_compiled
from ipg.data.table import ImageTable
from ipg.evaluation.confidence import confidence_metrics
from ipg.evaluation.parts import in_parts
from ipg.evaluation.statistics import at_chance, counted, lowest
from ipg.modes import unchanged
from ipg.rationale import double_precision, predicted_class

__all__ = [
    "evaluate", "evaluating", "evaluation_batch", "group_metrics", "guesses", "intervals", "is_constant", "logits",
    "logits_of", "metrics", "predict",
]  # fmt: skip

EVALUATION_BATCH = 256
"""On a GPU, always as many: for each other number of images cuDNN plans every convolution anew, which took 5 s for each
of the five that a first run of MobileNetV2 met, more than its training did."""
FEW = 32
"""Images that are not worth a whole batch of it."""
EVALUATION_BATCH_SMALL = 2048
"""Of images of up to 64 by 64 pixels, for which a GPU is told what to do no faster than it does it."""
EVALUATION_BATCH_CPU = 128
EVALUATION_VALUES_CPU = 32 * 3 * 128 * 128
"""On a CPU larger batches take longer, up to four times as long: their activations are new memory every time."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the mode of every module is as before afterwards."""
    with unchanged(model), torch.no_grad():
        model.eval()
        yield


def evaluation_batch(images: Tensor, place: torch.device) -> int:
    """How many of such `images` (n, C, H, W) at a time are evaluated fastest at `place`."""
    if place.type != "cpu":
        return EVALUATION_BATCH if math.prod(images.shape[2:]) > 64 * 64 else EVALUATION_BATCH_SMALL
    return max(1, min(EVALUATION_BATCH_CPU, EVALUATION_VALUES_CPU // max(1, math.prod(images.shape[1:]))))


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns: a tensor, an object with `logits`, or a tuple that begins with them."""
    if isinstance(output, Tensor):
        return output
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits


def logits(model: nn.Module, images: Tensor, *, autocast: torch.dtype | None = None) -> Tensor:
    """What `model` says of each of the uint8 `images`, (N, K)."""
    return _answers(model, images, autocast, lambda said: said)


def predict(model: nn.Module, images: Tensor, *, autocast: torch.dtype | None = None) -> Tensor:
    """The class that `model` gives each of the uint8 `images`, (N,)."""
    return _answers(model, images, autocast, predicted_class)


def _answers(
    model: nn.Module, images: Tensor, autocast: torch.dtype | None, take: Callable[[Tensor], Tensor]
) -> Tensor:
    """What `take` makes of the logits of each batch, put together.

    A compiled model is given batches of one size, the last one filled up: another size would be compiled for itself.
    So is any model of larger images on a GPU that are not few, see `EVALUATION_BATCH`. Where the device lacks the
    memory for a batch, they are smaller.
    """
    first = next(model.parameters(), images)
    place, alone = first.device, not in_shards(first)  # of a network in shards all processes run as one
    size = evaluation_batch(images, place)
    fill = is_compiled(model) or (size == EVALUATION_BATCH and len(images) > FEW)

    def answer(part: Tensor) -> Tensor:
        return take(logits_of(model(part.to(place).float() / 255)))

    with evaluating(model), torch.autocast(place.type, dtype=autocast, enabled=autocast is not None):
        return in_parts(answer, images, size, fill=fill, again=alone)


def evaluate(
    model: nn.Module, table: ImageTable, *, autocast: torch.dtype | None = None, training: ImageTable | None = None
) -> dict[str, Any]:
    """All metrics of `model` on `table`, as Python numbers; see `metrics`."""
    return metrics(logits(model, table.images, autocast=autocast), table, training=training)


def metrics(logits: Tensor, table: ImageTable, *, training: ImageTable | None = None) -> dict[str, Any]:
    """All metrics of `logits` (N, K) against the rows of `table`: those of `group_metrics` and `confidence_metrics`."""
    by_group = group_metrics(predicted_class(logits), table, training=training)
    return {**by_group, **confidence_metrics(logits, table.label)}


def group_metrics(predictions: Tensor, table: ImageTable, *, training: ImageTable | None = None) -> dict[str, Any]:
    """Metrics of `predictions` (N,) against the rows of `table`; fractions, None where there is no image.

    Args:
        predictions: a class an image.
        table: the images.
        training: the images that were trained on, whose shares of the groups `average_reweighted` takes.

    Returns:
        `average` over samples; `average_reweighted`, the mean over groups weighted by their shares of the training
        images (None without those, or where a group of theirs has no image here): the other "average accuracy" of the
        literature, which does not depend on how the test groups were balanced; `group_mean`, the unweighted mean over
        the groups that have images; `worst_group` among those; `balanced`, the unweighted mean over classes;
        `predicted_classes`, how many are ever predicted (a collapsed model predicts one); `groups`, name to accuracy
        and count; and `environments`, number to accuracy and count.
    """
    right = predictions == table.label
    by_group = _shares(right, table.group, len(table.group_names))
    by_class = _shares(right, table.label, table.num_classes)
    by_environment = _shares(right, table.environment, int(table.environment.max()) + 1 if len(table) else 0)
    groups = [share for share, _ in by_group if share is not None]
    classes = [share for share, _ in by_class if share is not None]
    return {
        "average": float(double_precision(right).mean()) if len(table) else None,
        "average_reweighted": None if training is None else _reweighted(by_group, training),
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


def intervals(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The accuracies of `group_metrics` with their intervals: `average`, `worst_group` with its name, and `groups`."""
    groups = {
        name: counted(round((group["accuracy"] or 0) * group["count"]), group["count"])
        for name, group in metrics["groups"].items()
    }
    place = lowest((group["share"], group["count"]) for group in groups.values())
    worst = None if place is None else [*groups][place]
    images = sum(group["count"] for group in groups.values())
    return {
        "average": counted(round((metrics["average"] or 0) * images), images),
        "worst_group": {"group": worst, **(groups[worst] if worst is not None else counted(0, 0))},
        "groups": groups,
    }


def is_constant(metrics: Mapping[str, Any]) -> bool:
    """Whether metrics are of a network that gives every image the same class, and not of images of one class."""
    return metrics.get("predicted_classes") == 1 and metrics.get("average") != 1


def guesses(metrics: Mapping[str, Any], classes: int) -> bool:
    """Whether metrics are of a network that is right no more often than guessing is, all groups counted alike.

    So is one that goes by the shortcut alone, where each of its forms is tested; only pairs tell the two apart.
    """
    counts = [group["count"] for group in (metrics.get("groups") or {}).values() if group.get("count")]
    mean = metrics.get("group_mean")
    if mean is None or classes < 2 or not counts:
        return False
    return at_chance(mean, classes, len(counts) ** 2 / sum(1 / count for count in counts))


def _shares(right: Tensor, key: Tensor, size: int) -> list[tuple[float | None, int]]:
    """Share of `right` and number of rows for each value of `key`."""
    counts = torch.stack([torch.bincount(key, minlength=size), torch.bincount(key[right], minlength=size)]).tolist()
    return [(hits / total if total else None, total) for total, hits in zip(*counts, strict=True)]


def _reweighted(by_group: list[tuple[float | None, int]], training: ImageTable) -> float | None:
    """The accuracies of groups in the proportions of the training images."""
    weights: list[int] = torch.bincount(training.group, minlength=len(by_group)).tolist()
    parts = [None if share is None else share * n for (share, _), n in zip(by_group, weights, strict=True) if n]
    known = [part for part in parts if part is not None]
    return sum(known) / len(training) if known and len(known) == len(parts) else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
