"""How well a network ranks classes, and how far its confidence is to be believed.

*AUROC*: the chance that an image of a class gets a higher score for it than an image of another class does, ties
counted half; of several classes the unweighted mean over one against the rest. *Calibration error* (ECE): Guo, Pleiss,
Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017. Images fall into bins of equal width by the
probability of the class they are given; with n_b images in bin b, of which a share acc_b is right at mean probability
conf_b,

    ECE = Σ_b n_b / n · |acc_b - conf_b|

Both are computed in double precision, whatever the network computes in.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.rationale import double_precision

__all__ = ["BINS", "calibration_error", "confidence_metrics"]

BINS = 15
"""Bins of equal width from 0 to 1, each with its upper end."""


def confidence_metrics(logits: Tensor, label: Tensor) -> dict[str, Any]:
    """`auroc` and `calibration_error` of `logits` (N, K); None where there is nothing to tell them by.

    A single logit (K = 1) is that of the second of two classes.
    """
    scores = double_precision(logits.detach())
    truth = label.to(scores.device)
    if scores.shape[1] == 1:
        scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
    if len(scores) == 0 or not bool(scores.isfinite().all()):
        return {"auroc": None, "calibration_error": None}
    return {"auroc": _auroc(scores, truth), "calibration_error": calibration_error(scores.softmax(dim=1), truth)}


def calibration_error(probability: Tensor, label: Tensor, *, bins: int = BINS) -> float:
    """How far confidence is from accuracy, on average over the images, for the `probability` (N, K) of classes."""
    confidence, given = probability.max(dim=1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1  # (N,)
    off = ((given == label).double() - confidence) @ F.one_hot(place, bins).double()  # (bins,)
    return float(off.abs().sum() / len(label))


def _auroc(scores: Tensor, label: Tensor) -> float | None:
    """Of two classes by the difference of their logits, of more by the log-probability of each in turn."""
    classes = scores.shape[1]
    columns = [scores[:, 1] - scores[:, 0]] if classes == 2 else list(scores.log_softmax(dim=1).unbind(1))
    known = [
        area
        for number, column in enumerate(columns, start=int(classes == 2))
        if (area := _area(column[label == number], column[label != number])) is not None
    ]
    return math.fsum(known) / len(known) if known else None


def _area(inside: Tensor, outside: Tensor) -> float | None:
    """The share of pairs of one score from each in which the first is higher, ties counted half."""
    if not len(inside) or not len(outside):
        return None
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside) + torch.searchsorted(ordered, inside, right=True)
    return int(below.sum()) / (2 * len(inside) * len(outside))
