"""NCM, noisy counterfactual matching: what the members of a pair differ in is projected out of the features.

    Δ = rows z(x_i) − z(x'_i) of all training pairs, not centred;   U = its top r right singular vectors, (D, r)
    P = I − U U^T;    a linear head is trained on z P

The features z are frozen: those of a network with weights (`--weights FILE --freeze`), in the paper CLIP's, or the
pixels themselves (`--model linear`). Rank 0 is plain training bit for bit. On pixels whose pairs are recoloured, full
rank maps both colours to one image, grey in both channels.

Bai, Ji, Zhou and Inouye, "From Invariant Representations to Invariant Data: Provable Robustness to Spurious
Correlations via Noisy Counterfactual Matching", 2025 (arXiv:2505.24843).

Differs from the authors' code: there the projection is left out when the head is evaluated. Here the head holds W P and
needs none. W is kept beside it and is what the optimizer moves, along the projected gradient: the same as training on
z P, also where W decays. Theirs stands on the 512 features of CLIP ViT-B/32, of which timm gives the 768 before CLIP's
own projection; weight decay 1e-4, 40 epochs of batches of 256 at a rate of 1e-3, the rank one of 2 to 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ipg.data.batches import Batch
from ipg.evaluation.features import features
from ipg.methods.base import Method, Need, Setup
from ipg.methods.options import option
from ipg.methods.space import Choice, Range
from ipg.pairs.pairset import PairSet
from ipg.rationale import find_head, full_precision, unwrap

__all__ = ["Ncm", "spurious_directions"]


@dataclass(frozen=True)
class NcmOptions:
    """How many directions are projected out."""

    rank: int = option(8, least=0)


def spurious_directions(first: Tensor, second: Tensor, rank: int) -> Tensor:
    """U, (D, r): an orthonormal basis of what the features (n, D) of the members of pairs mostly differ in.

    Of a rank beyond that of the differences only as many directions are given as differ.
    """
    apart = full_precision(first) - full_precision(second)
    _, sizes, right = torch.linalg.svd(apart, full_matrices=False)
    noise = sizes[:1] * max(apart.shape) * torch.finfo(apart.dtype).eps  # as torch.linalg.matrix_rank has it
    found: Tensor = right[:rank][sizes[:rank] > noise]  # (r, D)
    return found.T.contiguous()


class Ncm(Method):
    """A linear head on frozen features, without the directions in which pairs differ."""

    name: ClassVar[str] = "ncm"
    summary: ClassVar[str] = "NCM: a head on frozen features, less the directions in which pairs differ."
    cost: ClassVar[str] = "1, the backward pass for the head alone"
    needs: ClassVar[frozenset[Need]] = frozenset({"pairs"})
    whole: ClassVar[str] = "it puts the projected weights of the head in their place after every update"
    Options: ClassVar[type] = NcmOptions
    space: ClassVar[Mapping[str, Range]] = {"rank": Choice(tuple(range(2, 13)))}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        network = unwrap(setup.model)
        self.head = find_head(network)
        _check_frozen(network, self.head, setup)
        rank = cast(NcmOptions, self.options).rank
        self.directions: Tensor | None = None  # U, (D, r)
        self.weight = self.head.weight.detach().clone()  # W, (K, D), of which the head holds W P
        if rank > 0:
            pairs = cast(PairSet, setup.pair_set)
            found = spurious_directions(features(network, pairs.first), features(network, pairs.second), rank)
            self.directions = found.to(self.head.weight)
            self._fold()

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step of the head on projected features."""
        optimizer = self.setup.optimizer
        optimizer.zero_grad()
        loss = self.setup.task_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.directions is None:
            optimizer.step()
        else:
            _project_out(cast(Tensor, self.head.weight.grad), self.directions)
            self._unfold()
            optimizer.step()
            self._fold()
        return {"task_loss": loss.detach()}

    @torch.no_grad()
    def _unfold(self) -> None:
        """Put W into the head, for the optimizer to move."""
        self.head.weight.copy_(self.weight)

    @torch.no_grad()
    def _fold(self) -> None:
        """Keep W as the head has it, and put W P there."""
        self.weight.copy_(self.head.weight)
        _project_out(self.head.weight, cast(Tensor, self.directions))

    def state_dict(self) -> dict[str, Any]:
        """The directions and W, of which the network holds W P."""
        if self.directions is None:
            return {}
        return {"directions": self.directions.clone(), "weight": self.weight.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same directions and the same W."""
        if self.directions is not None:
            self.directions.copy_(state["directions"])
            self.weight.copy_(state.get("weight", self.head.weight))  # older checkpoints have W P alone


def _project_out(rows: Tensor, directions: Tensor) -> None:
    """Take from `rows` (K, D) what lies along `directions` (D, r), in place."""
    rows.sub_((rows @ directions) @ directions.T)


def _check_frozen(network: nn.Module, head: nn.Linear, setup: Setup) -> None:
    """A ValueError where the features would change, or are those of a network that has learnt nothing."""
    own = {id(parameter) for parameter in head.parameters()}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in own]
    if any(parameter.requires_grad for parameter in rest):
        reason = "its features would change in training"
    elif rest and setup.config.weights is None and setup.config.start is None:
        reason = "its features are those of fresh, random weights"
    else:
        return
    raise ValueError(
        f"method 'ncm' trains a head on frozen features, and {reason}: give it a network with weights and freeze that, "
        f"e.g. --model vit_base_patch32_clip_224 --weights FILE --freeze (CLIP, the paper's), or take the pixels, "
        f"--model linear; in `ipg compare`, for this method alone: -o ncm.model=linear"
    )
