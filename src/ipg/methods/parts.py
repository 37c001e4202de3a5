"""What several methods take apart: batches, by groups or environments, and last layers, by class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.rationale import find_head

__all__ = ["class_rows", "means_by", "membership", "refittable_head"]


def means_by(values: Tensor, key: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """The mean of `values` (B, …) over the rows of each key (B,), and how many they are, without asking the device.

    Returns:
        Means (parts, …), 0 where there is no row, and counts (parts,). Sums are a matrix product, so that they come
        out the same every time on a GPU, too.
    """
    member = membership(key, parts, values.dtype)  # (B, parts)
    counts = member.sum(dim=0)
    flat = values.reshape(len(values), -1)
    sums = torch.einsum("bp,bv->pv", member, flat)
    means = sums / counts.clamp_min(1)[:, None]
    return means.reshape(parts, *values.shape[1:]), counts


def membership(key: Tensor, parts: int, dtype: torch.dtype) -> Tensor:
    """1 where a row is of a part and 0 elsewhere, (B, parts), from the part of every row (B,)."""
    return (key[:, None] == torch.arange(parts, device=key.device)).to(dtype)


def class_rows(weight: Tensor) -> Tensor:
    """A row of weights a class, (K, D), from those of a last layer; one logit o stands for the two logits (0, o)."""
    return F.pad(weight, (0, 0, 1, 0)) if len(weight) == 1 else weight


def refittable_head(model: nn.Module, *, method: str) -> nn.Linear:
    """The last layer of `model`, whose weights `method` will put others in the place of.

    Raises:
        ValueError: they are made of others at every pass, as by `torch.nn.utils.parametrize`, and would come back.
    """
    head = find_head(model)
    if not isinstance(head.weight, nn.Parameter):
        raise ValueError(
            f"method {method!r} fits the last layer anew, and its weights are made of others here, as weight "
            f"normalisation does: take the parametrization off it first"
        )
    return head
