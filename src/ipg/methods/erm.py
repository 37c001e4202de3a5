"""Empirical risk minimisation: plain training.

    L = 1/Σw Σ_i w_{y_i} · CE(f(x_i), y_i),    w_c = N / (K N_c) with --class-weighted, 1 without

Vapnik, "Principles of Risk Minimization for Learning Theory", 1991; the class weights are those of IPG's paper, section
C.1.

Differs from the paper: in the class weights alone, which are on unless the run says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from ipg.collectives import GlobalCrossEntropy
from ipg.data.batches import Batch
from ipg.methods.base import Method, Setup
from ipg.methods.space import LogUniform, Range

__all__ = ["Erm", "Unweighted"]


class Erm(Method):
    """Plain training, without guidance."""

    name: ClassVar[str] = "erm"
    summary: ClassVar[str] = "Plain training: cross-entropy, weighted by class unless told otherwise."
    space: ClassVar[Mapping[str, Range]] = {
        "learning_rate": LogUniform(1e-5, 1e-2),
        "weight_decay": LogUniform(1e-6, 1e-2),
    }
    """Of the run's settings, for there are none of its own; methods that only draw or change images share it."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the task loss."""
        optimizer = self.setup.optimizer
        optimizer.zero_grad()
        loss = self.setup.task_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {"task_loss": loss.detach()}


class Unweighted(Erm):
    """Base of the methods that balance what is drawn, so that the loss is never weighted by class."""

    weighs_classes: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(replace(setup, criterion=GlobalCrossEntropy()))
