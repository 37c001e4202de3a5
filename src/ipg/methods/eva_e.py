"""EvA-E, erasing by evidence energy (re-derived): the channels that speak loudest for a class are taken from it.

A network is trained plainly. With features φ, last layer W and probabilities p, the evidence energy of channel i for
class k is, over the training images of that class,

    e_ik = mean_x −p_k(x) W_ki φ_i(x)           evidence=class     (default)
    e_ik = mean_x −φ_i(x) Σ_c p_c(x) W_ci       evidence=activation

A shortcut is learnt first and most confidently, so that its channels have the most negative energies. Of every class
the share ρ of channels with the lowest energies is erased from W, and the last layer is fitted anew without them,

    min_{W, b}  1/n Σ_i n/(K n_{y_i}) CE((W ⊙ M) φ_i + b, y_i) + c/(2n) ‖W ⊙ M‖²

on training features, classes alike, with b = 0 for a last layer without biases; ρ is the one of 0.01 to 0.9 that does
best on validation images.

He, Xu and Yao, "EvA: Erasing Spurious Correlations with Activations", ICLR 2025: EvA-E, the form that needs no data
without the shortcut.

Differs from the paper: it has no public code, and was known here by reviews of it alone. That the energy is the free
energy −log Σ exp taken apart by class and channel, that the most negative is erased and the last layer refitted is
from there; the two formulas above, the balance of classes and the penalty c are ours. No group labels are used, but for
the choice of ρ with judge=worst_group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.table import ImageTable
from ipg.evaluation.features import features
from ipg.methods.base import Need, Setup
from ipg.methods.erm import Erm
from ipg.methods.options import option
from ipg.methods.parts import means_by, refittable_head
from ipg.methods.space import Choice, LogUniform, Range
from ipg.rationale import double_precision, find_head

__all__ = ["EvaE", "energies", "fit_kept", "kept_channels"]

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""ρ, from which one is selected."""

Evidence = Literal["class", "activation"]


@dataclass(frozen=True)
class EvaEOptions:
    """Which energy, by what ρ is judged on validation images, and c."""

    evidence: Evidence = "class"
    judge: Literal["average", "worst_group"] = "average"
    penalty: float = option(1.0, above=0)


class EvaE(Erm):
    """Plain training, and a last layer without the channels of most evidence."""

    name: ClassVar[str] = "eva_e"
    cost: ClassVar[str] = "1, and fits of the head"
    summary: ClassVar[str] = "EvA-E (re-derived): plain training, then a last layer without the loudest channels."
    refits: ClassVar[bool] = True
    whole: ClassVar[str] = "it fits the head anew when training is over"
    Options: ClassVar[type] = EvaEOptions
    space: ClassVar[Mapping[str, Range]] = {
        "evidence": Choice(("class", "activation")),
        "penalty": LogUniform(0.01, 100),
    }

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> frozenset[Need]:
        """Also the groups of validation images with judge=worst_group."""
        return cls.needs | ({"validation groups"} if options.get("judge") == "worst_group" else set())

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.validation is None:
            raise ValueError(
                f"method {self.name!r} chooses how much to erase on validation images, and there are none: give some "
                f"images the split validation"
            )
        judge = cast(EvaEOptions, self.options).judge
        if judge == "worst_group" and len(setup.validation.attribute.unique()) < 2:  # type: ignore[no-untyped-call]
            raise ValueError("judge=worst_group needs validation images whose attribute is known: take judge=average")
        head = refittable_head(setup.model, method=self.name)
        if setup.table is not None and head.out_features != setup.table.num_classes:
            raise ValueError(f"method {self.name!r} needs a last layer with an output for each class")

    def refit(self, model: nn.Module, validation: ImageTable) -> None:
        """Put a last layer on `model` that is fitted to the training images without the erased channels."""
        options, table = cast(EvaEOptions, self.options), cast(ImageTable, self.setup.table)
        head = find_head(model)
        inputs = double_precision(features(model, table.images))
        label = table.label.to(inputs.device)
        weight = double_precision(head.weight.detach())
        bias = weight.new_zeros(len(weight)) if head.bias is None else double_precision(head.bias.detach())
        energy = energies(inputs, label, weight, bias, options.evidence)
        judged = double_precision(features(model, validation.images))
        best, found = -1.0, (weight, bias)
        for share in SHARES:
            kept = kept_channels(energy, share)
            weight, bias = fit_kept(inputs, label, kept, penalty=options.penalty, biased=head.bias is not None)
            right = (judged @ weight.T + bias).argmax(dim=1) == validation.label.to(inputs.device)
            if (value := _worth(right.double(), validation, options.judge)) > best:
                best, found = value, (weight, bias)
        with torch.no_grad():
            head.weight.copy_(found[0])
            if head.bias is not None:
                head.bias.copy_(found[1])


def energies(inputs: Tensor, label: Tensor, weight: Tensor, bias: Tensor, evidence: Evidence) -> Tensor:
    """The evidence energy of every class and channel, (K, D), from features (n, D); 0 for classes without images."""
    share = torch.softmax(inputs @ weight.T + bias, dim=1)  # (n, K)
    if evidence == "activation":
        return means_by(-inputs * (share @ weight), label, len(weight))[0]
    own = share.gather(1, label[:, None])  # (n, 1)
    return means_by(-own * inputs * weight[label], label, len(weight))[0]


def kept_channels(energy: Tensor, share: float) -> Tensor:
    """1 for the channels that each class keeps and 0 for the `share` of lowest energy, (K, D)."""
    order = energy.argsort(dim=1, stable=True)
    return torch.ones_like(energy).scatter_(1, order[:, : round(share * energy.shape[1])], 0.0)


def fit_kept(
    inputs: Tensor, label: Tensor, kept: Tensor, *, penalty: float, biased: bool = True
) -> tuple[Tensor, Tensor]:
    """Weights (K, D), 0 where they are not kept, and biases (K,) of the minimum: by Newton's method, which needs a
    dozen steps where features are alike, or by L-BFGS where that would take too much memory.

    Where the fit is not `biased`, the biases are 0 and the weights those that do best without any.
    """
    classes, count = len(kept), len(inputs)
    sizes = torch.bincount(label, minlength=classes).to(inputs.dtype)
    balance = torch.where(sizes > 0, count / (classes * sizes.clamp_min(1)), 0.0)
    fit = _Fit(
        torch.cat([inputs, inputs.new_ones(count, 1)], dim=1),
        label,
        balance[label] / count,
        torch.cat([kept, kept.new_full((classes, 1), float(biased))], dim=1),
        torch.cat([torch.full_like(kept, penalty / count), kept.new_zeros(classes, 1)], dim=1),
    )
    found = _newton(fit) if fit.kept.numel() <= NEWTON else _lbfgs(fit)
    return found[:, :-1], found[:, -1]


class _Fit(NamedTuple):
    """A weighted logistic regression with a penalty, on features that end with a 1."""

    inputs: Tensor  # (n, D + 1)
    label: Tensor  # (n,)
    share: Tensor  # (n,); what an image counts
    kept: Tensor  # (K, D + 1); 0 for entries that stay 0
    penalty: Tensor  # (K, D + 1)

    def loss(self, weight: Tensor) -> Tensor:
        each = F.cross_entropy(self.inputs @ weight.T, self.label, reduction="none")
        return self.share @ each + (self.penalty * weight.square()).sum() / 2

    def slope(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient (K, D + 1), and the probabilities (n, K) that it comes from."""
        given = torch.softmax(self.inputs @ weight.T, dim=1)
        off = self.share[:, None] * (given - F.one_hot(self.label, len(weight)))
        return self.kept * (off.T @ self.inputs + self.penalty * weight), given

    def curvature(self, given: Tensor) -> Tensor:
        """The second derivative (K (D + 1), K (D + 1)); 1 on the diagonal of entries that stay 0."""
        classes, width = self.kept.shape
        blocks = self.inputs.new_empty(classes, width, classes, width)
        for first in range(classes):
            for second in range(first, classes):
                part = self.share * given[:, first] * (float(first == second) - given[:, second])
                blocks[first, :, second] = blocks[second, :, first] = self.inputs.T @ (part[:, None] * self.inputs)
        known = self.kept.flatten()
        whole = blocks.view(len(known), len(known)) * known * known[:, None]
        return whole + torch.diag(torch.where(known > 0, self.penalty.flatten() + RIDGE, 1.0))


NEWTON = 4096
"""Weights and biases up to which the whole second derivative is taken."""
RIDGE = 1e-10
"""Added to the second derivative, which is 0 where all biases rise alike."""


def _newton(fit: _Fit) -> Tensor:
    weight = torch.zeros_like(fit.kept)
    loss = fit.loss(weight)
    for _ in range(100):
        slope, given = fit.slope(weight)
        step = torch.linalg.solve(fit.curvature(given), slope.flatten()).view_as(weight)
        gain, length = float((slope * step).sum()), 1.0
        if gain < 1e-18:
            break
        while not float(following := fit.loss(weight - length * step)) <= float(loss) - 1e-4 * length * gain:
            length /= 2
            if length < 1e-6:  # no better within rounding
                return weight
        weight, loss = weight - length * step, following
    return weight


def _lbfgs(fit: _Fit) -> Tensor:
    weight = torch.zeros_like(fit.kept, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight], max_iter=500, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        with torch.no_grad():
            weight.grad, _ = fit.slope(weight)
            return fit.loss(weight)

    solver.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach()


def _worth(right: Tensor, table: ImageTable, judge: str) -> float:
    """Accuracy on average or in the worst group that has images."""
    if judge == "average":
        return float(right.mean())
    shares, counts = means_by(right, table.group.to(right.device), len(table.group_names))
    return float(shares[counts > 0].min())
