"""Just Train Twice: train plainly for a little while, then again with the images it got wrong counted more.

Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, "Just Train Twice: Improving Group Robustness without
Training Group Information", ICML 2021. The first network is trained for T epochs; with E the training images that it
gets wrong, the second, begun anew, is trained on

    D ∪ E ∪ … ∪ E    (λ copies of E, so that its images come λ + 1 times a pass)

Differs from the paper: the first stage has the settings of the second but for its number of epochs and a warm-up as
much shorter (one of an epoch stays so), and both begin from the same weights. Group labels select the epoch alone, if
the run's selection rule says so. Where the shortcut never fails in training, as in Waterbirds-100, E may be almost
empty: the run is then plain training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.batches import Sampling
from ipg.data.table import ImageTable
from ipg.evaluation.groups import predict
from ipg.methods.erm import Erm
from ipg.methods.options import option, parse_options
from ipg.methods.space import Choice, Range

__all__ = ["Jtt"]


@dataclass(frozen=True)
class JttOptions:
    """How long the first stage lasts (T), and how often its errors are repeated (λ)."""

    first_epochs: int = option(1, least=1)
    copies: int = option(20, least=0)


class Jtt(Erm):
    """Plain training twice: the second time errors of the first count more."""

    name: ClassVar[str] = "jtt"
    summary: ClassVar[str] = "Just Train Twice: plain training, and again with its errors repeated."
    cost: ClassVar[str] = "1, and a first stage and repeated images"
    Options: ClassVar[type] = JttOptions
    space: ClassVar[Mapping[str, Range]] = {"first_epochs": Choice((1, 2, 4)), "copies": Choice((5, 20, 50, 100))}

    @classmethod
    def first_stage(cls, config: RunConfig) -> RunConfig:
        """Plain training for T epochs, the last one kept; it warms up for the same share of its iterations.

        A warm-up of an epoch stays one.
        """
        epochs = parse_options(cls, config.options).first_epochs
        warmup = config.warmup
        if isinstance(warmup, int):
            warmup = warmup * epochs // max(epochs, config.epochs)
        return config.with_changes(method="erm", options={}, epochs=epochs, warmup=warmup, selection="last")

    @classmethod
    def learn(cls, first: nn.Module, table: ImageTable, options: Any, *, autocast: torch.dtype | None) -> Sampling:
        """All images, and the errors of the first network λ times more."""
        wrong = predict(first, table.images, autocast=autocast) != table.label
        errors = torch.nonzero(wrong.cpu()).flatten()
        return Sampling(rows=torch.cat([torch.arange(len(table)), errors.repeat(options.copies)]))
