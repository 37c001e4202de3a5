"""What a batch of pairs says, from what is compared to the losses, as pure functions. This file needs torch alone.

They can be compiled: each then runs as a few kernels in place of dozens, which matters where a whole step takes a
millisecond.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ipg.rationale as rationales

__all__ = ["COLLAPSE_TOLERANCE", "Comparison", "compare", "compiled", "embed", "is_compiled"]

COLLAPSE_TOLERANCE = 1e-3
"""How near alignment must come to 0, and uniformity to its maximum, in units of the margin, to count as collapsed."""


class Comparison(NamedTuple):
    """What a batch of pairs says of a model."""

    alignment: Tensor
    """`L_A`, a scalar with its graph."""
    uniformity: Tensor
    """`L_U`, a scalar with its graph."""
    disagreement: Tensor
    """`δ`, a scalar."""
    margin: Tensor
    """The margin in force, a scalar; NaN while a relative one is not measured yet."""
    spread: Tensor
    """Margin, mean distance between different labels, share of those that reach the margin, (3,)."""
    near: Tensor
    """Whether images of different labels are next to nothing apart, as the margin goes, a scalar."""
    flat: Tensor
    """Whether they stand on one point, as its distance from the origin goes, a scalar."""


def embed(distance: str, features: Tensor, logits: Tensor, weight: Tensor) -> Tensor:
    """What is compared, (2n, ·), in single precision or better: rationales as scaled features, features or logits."""
    if distance == "rationale":
        return rationales.scaled_features(features, weight)
    return rationales.full_precision(features if distance == "features" else logits)


def compare(
    embedded: Tensor,
    label: Tensor,
    differ: Tensor,
    margin: Tensor,
    *,
    relative: float | None = None,
    jitter: float = 0.0,
    noise: Tensor | None = None,
) -> Comparison:
    """Lines 3 to 8 of Algorithm 1 from what the pairs are compared in.

    Args:
        embedded: what is compared, of the first and then of the second members, (2n, D).
        label: of each pair, (n,).
        differ: whether the members of each pair are classified differently, (n,).
        margin: m, a scalar; NaN where it is relative and not measured yet.
        relative: the multiple that a relative margin is of the mean distance between different labels.
        jitter: length of `noise` as a share of the margin.
        noise: added to what the uniformity term compares, (2, n, D).
    """
    different = label[:, None] != label  # (n, n)
    members = embedded.reshape(2, len(label), -1)  # (2, n, D)
    first, second = members
    if noise is not None:
        members = members + jitter * torch.nan_to_num(margin, nan=0.0) * noise / math.sqrt(members.shape[-1])
    distances = rationales.pairwise_distances(members)  # (2, n, n)
    apart = distances.detach()
    count = 2 * different.sum()
    separation = (apart * different).sum() / count.clamp_min(1)  # 0 where there is one label
    if relative is not None:
        measured = relative * separation
        settles = torch.isnan(margin) & torch.isfinite(measured) & (measured > 0)
        margin = torch.where(settles, measured.to(margin.dtype), margin)
    known = torch.nan_to_num(margin, nan=0.0)
    met = 1 - (different & (apart < known)).sum() / count.clamp_min(1)
    align = rationales.alignment(first, second)
    uniform = rationales.uniformity(distances, different, known)
    several = different.any()
    return Comparison(
        align,
        uniform,
        rationales.share(differ, margin.dtype),
        margin,
        torch.stack([known.to(met.dtype), separation.to(met.dtype), met]),
        _near(align.detach(), uniform.detach(), different, known) & several,
        _flat(embedded.detach()) & several,
    )


def _near(align: Tensor, uniform: Tensor, different: Tensor, margin: Tensor) -> Tensor:
    """Whether images of different labels, and members of pairs, are next to nothing apart as the margin goes."""
    worst = different.float().mean() * margin  # L_U when every distance is 0
    near: Tensor = (margin > 0) & (uniform >= (1 - COLLAPSE_TOLERANCE) * worst) & (align <= COLLAPSE_TOLERANCE * margin)
    return near


def _flat(embedded: Tensor) -> Tensor:
    """Whether all images stand on one point, as its distance from the origin goes."""
    centre = embedded.mean(dim=0)
    spread = torch.linalg.vector_norm(embedded - centre, dim=1).max()
    flat: Tensor = spread <= 1e-6 * torch.linalg.vector_norm(centre)
    return flat


def is_compiled(model: nn.Module) -> bool:
    """Whether `model` comes from torch.compile; one of ours for a CPU says that it takes batches of any size."""
    return hasattr(model, "_orig_mod") and not getattr(model, "any_batch", False)


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled for the shapes it meets."""
    fast = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # dynamo looks
            return fast(*arguments, **options)

    return run
