"""What a correction finds and what a step did, as scalars on the device. This file needs torch alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ipg.comparison import Comparison
from ipg.watch import CORRECTIVE, count_collapse, count_norm

__all__ = ["Correction", "Report", "Spread", "Terms", "as_number", "keep_correction", "keep_pairs", "plain_report"]


class Terms(NamedTuple):
    """What a batch of pairs says of the model; every field a scalar tensor."""

    alignment: Tensor
    """`L_A`."""
    uniformity: Tensor
    """`L_U`."""
    disagreement: Tensor
    """`δ`."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The last correction. Its tensors belong to the `Guidance` and are overwritten in place by the next one."""

    values: Tensor  # (4,): alignment, uniformity, disagreement, norm

    @property
    def alignment(self) -> Tensor:
        """`L_A`."""
        return self.values[0]

    @property
    def uniformity(self) -> Tensor:
        """`L_U`."""
        return self.values[1]

    @property
    def disagreement(self) -> Tensor:
        """`δ`, before the corrective update."""
        return self.values[2]

    @property
    def norm(self) -> Tensor:
        """`‖g_C‖`, over all trainable parameters."""
        return self.values[3]


class Spread(NamedTuple):
    """How the last batch of pairs lies to the margin; every field a scalar tensor, overwritten by the next batch."""

    margin: Tensor
    """`m`; 0 while a relative one is not measured yet."""
    separation: Tensor
    """Mean distance between rationales of different labels; 0 where the batch has one label."""
    met: Tensor
    """Share of those distances that reach the margin; 1 where the batch has one label."""


class Report(NamedTuple):
    """What one step did. Every field is a scalar tensor on the device: whoever prints one pays for the copy."""

    task_loss: Tensor
    """Of several processes, this one's: their mean is the loss of the whole batch. All else is the same on each."""
    alignment: Tensor
    uniformity: Tensor
    disagreement: Tensor
    correction_norm: Tensor
    task_norm: Tensor
    scale: Tensor
    violated: Tensor
    clipped: Tensor
    floored: Tensor

    def numbers(self) -> dict[str, float]:
        """All fields as Python floats, in one copy from the device."""
        values = torch.stack([field.to(self.alignment.dtype) for field in self]).tolist()
        return dict(zip(self._fields, values, strict=True))


def as_number(loss: Tensor) -> Tensor:
    """A loss of one entry as a scalar without a graph."""
    return loss.detach().reshape(())


def plain_report(loss: Tensor) -> Report:
    """The report of a step without pairs: the task gradient as it is, the rest unknown."""
    loss = as_number(loss)
    unknown, no = loss.new_full((5,), math.nan), loss.new_zeros(3, dtype=torch.bool)
    return Report._make([loss, *unknown, loss.new_ones(()), *no])


def keep_pairs(margin: Tensor, spread: Tensor, counters: Tensor, widest: Tensor, found: Comparison) -> None:
    """Keep on the device what a batch of pairs has shown."""
    margin.copy_(found.margin)
    spread.copy_(found.spread)
    count_collapse(counters, widest, found.spread[1], found.near, found.flat)


def keep_correction(values: Tensor, counters: Tensor, terms: Sequence[Tensor], norm: Tensor) -> None:
    """Keep a correction on the device, the last one where this one's gradient is not finite."""
    fresh = torch.stack([*terms, norm]).to(values.dtype)
    values.copy_(torch.where(torch.isfinite(norm), fresh, values))
    count_norm(counters, norm, CORRECTIVE)
