"""Deep Feature Reweighting: train plainly, then fit the last layer anew on validation images, groups alike.

Kirichenko, Izmailov and Wilson, "Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations", ICLR
2023 (DFR_Tr^Val). With the features of validation images, standardised, half of them fit

    min_{W, b}  Σ_i CE(W z_i + b, y_i) + 1/C ‖W‖₁

on as many images of every group as the smallest has; the other half selects C by its worst group. The weights are then
the mean over ten balanced draws from all of them, and the standardisation is folded into the head. What others vary is
an option: how many draws (20 in the authors' code), features as they are, and how much of the validation images may be
used (LaBonte, Muthukumar and Kumar, NeurIPS 2023).

Differs from the paper: two classes have a row of weights each, of which a head with a single logit takes the
difference; the fit is by proximal gradient descent, on features standardised by all validation images. It *trains on
group labels of validation images*, as none of the other methods does but `dkt` with policy=learned: tables have to say
so, and the run's own validation figures after the refit mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ipg.data.table import ImageTable
from ipg.evaluation.features import features
from ipg.methods.base import Need, Setup
from ipg.methods.erm import Erm
from ipg.methods.options import option
from ipg.methods.parts import means_by, refittable_head
from ipg.methods.space import Choice, Range
from ipg.methods.sparse_logistic import sparse_logistic
from ipg.rationale import find_head
from ipg.seeds import derive_seed
from ipg.words import listed

__all__ = ["Dfr"]

STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
"""C, from which one is selected."""


@dataclass(frozen=True)
class DfrOptions:
    """How many balanced draws are averaged, of which part of the validation images, and whether features are scaled."""

    draws: int = option(10, least=1)
    standardised: bool = True
    share: float = option(1.0, above=0, most=1)


class Dfr(Erm):
    """Plain training, and a last layer fitted to validation groups."""

    name: ClassVar[str] = "dfr"
    summary: ClassVar[str] = "Deep Feature Reweighting: plain training, then a last layer fitted to validation groups."
    cost: ClassVar[str] = "1, and fits of the head"
    needs: ClassVar[frozenset[Need]] = frozenset({"validation groups"})
    refits: ClassVar[bool] = True
    whole: ClassVar[str] = "it fits the head anew when training is over"
    Options: ClassVar[type] = DfrOptions
    space: ClassVar[Mapping[str, Range]] = {
        "draws": Choice((1, 10, 20)),
        "standardised": Choice((True, False)),
        "share": Choice((0.25, 0.5, 1.0)),
    }

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        validation = setup.validation
        if validation is not None:
            counts = torch.bincount(validation.group)
            if alone := [validation.group_names[number] for number in torch.nonzero(counts == 1).flatten().tolist()]:
                raise ValueError(
                    f"method {self.name!r} splits the validation images of every group in two, and there is one alone "
                    f"of {listed(alone)}: add some, or take another method"
                )
        if refittable_head(setup.model, method=self.name).bias is None:
            raise ValueError(f"method {self.name!r} fits a bias, and the head of this network has none")

    def refit(self, model: nn.Module, validation: ImageTable) -> None:
        """Put a new last layer on `model`, fitted to the `validation` images."""
        options: DfrOptions = self.options
        generator = torch.Generator().manual_seed(derive_seed(self.setup.config.seed, "refit"))
        inputs = features(model, validation.images).cpu().double()
        label, group = validation.label.cpu(), validation.group.cpu()
        if options.share < 1:
            rows = some_of_all(group, options.share, generator)
            inputs, label, group = inputs[rows], label[rows], group[rows]
        mean, spread = inputs.mean(dim=0), inputs.std(dim=0).clamp_min(1e-6)
        if not options.standardised:
            spread = torch.ones_like(spread)  # centred all the same: biases are free, so it changes no minimum
        inputs = (inputs - mean) / spread
        order = torch.randperm(len(label), generator=generator)
        strength = _select(inputs, label, group, order, validation.num_classes, generator)
        fits = []
        for _ in range(options.draws):
            rows = balanced(group, generator)
            fits.append(_fit(inputs[rows], label[rows], validation.num_classes, strength))
        weight = torch.stack([fit[0] for fit in fits]).mean(dim=0) / spread
        bias = torch.stack([fit[1] for fit in fits]).mean(dim=0) - weight @ mean
        head = find_head(model)
        if head.out_features == 1:  # which is given as (0, o)
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        with torch.no_grad():
            head.weight.copy_(weight)
            head.bias.copy_(bias)


def some_of_all(group: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Rows drawn without replacement, in their order: a `share` of every group, rounded up, and two at least."""
    drawn = []
    for number in torch.bincount(group).nonzero().flatten().tolist():
        rows = torch.nonzero(group == number).flatten()
        count = max(2, math.ceil(share * len(rows)))
        drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(drawn).sort().values


def balanced(group: Tensor, generator: torch.Generator) -> Tensor:
    """Rows drawn without replacement, as many of every group that exists as the smallest has."""
    counts = torch.bincount(group)
    least = int(counts[counts > 0].min())
    members = [torch.nonzero(group == number).flatten() for number in counts.nonzero().flatten().tolist()]
    return torch.cat([rows[torch.randperm(len(rows), generator=generator)[:least]] for rows in members])


def _select(
    inputs: Tensor, label: Tensor, group: Tensor, order: Tensor, classes: int, generator: torch.Generator
) -> float:
    """The C whose fit on one half does best in the worst group of the other; both halves hold every group."""
    places = torch.empty_like(order)
    for number in range(int(group.max()) + 1):  # alternately, in a random order, within every group
        rows = order[group[order] == number]
        places[rows] = torch.arange(len(rows)) % 2
    fit, judge = (torch.nonzero(places == half).flatten() for half in (0, 1))
    rows = fit[balanced(group[fit], generator)]
    worst: dict[float, float] = {}
    for strength in STRENGTHS:
        weight, bias = _fit(inputs[rows], label[rows], classes, strength)
        right = ((inputs[judge] @ weight.T + bias).argmax(dim=1) == label[judge]).double()
        shares, counts = means_by(right, group[judge], int(group.max()) + 1)
        worst[strength] = float(shares[counts > 0].min())
    return max(worst, key=lambda strength: worst[strength])


def _fit(inputs: Tensor, label: Tensor, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    return sparse_logistic(inputs, label, classes, penalty=1 / (strength * len(label)))
