"""DKT, dynamic knowledge transfer (re-derived): classify features as they are and as if they had the other attribute.

With running means μ and diagonal covariances Σ of the features of every group (y, a), an image is also classified as if
its features were z̃ ~ N(z + m, S), moved towards the other attribute a' of its own class:

    m = β (μ_{y,a'} − μ_{y,a}),    S = λ Σ_{y,a'}

    L = (1 − κ) CE(o, y) + κ CE(o + s, y),    s_c = (w_c − w_y)·m + ½ (w_c − w_y)ᵀ S (w_c − w_y)

CE(o + s, y) bounds the expected cross-entropy over all such features from above (Wang et al., "Implicit Semantic Data
Augmentation for Deep Networks", NeurIPS 2019). β and λ rise linearly from 0. They are numbers (policy=fixed), or a
small network picks them for every image from its loss, its margin and the frequency of its class and group, and learns
by REINFORCE what lowers the loss on validation images, groups alike (policy=learned).

After Zhou, Ye, Lee and Zhang, "Robustness to Spurious Correlations via Dynamic Knowledge Transfer", IJCAI 2025.

Differs from the paper: it has no public code, and all above is *derived anew* from its abstract. κ below 1, so that
features count as they are, too, and means that the gradient reaches through the batch's own (`attached`) are ours.
The reward is the validation loss after the step itself. With more than two attributes, a' is the mean of the others.
Where a class has images of one attribute alone its images are classified as they are; if that is so for every class, as
in Waterbirds-100, the method is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods.base import Method, Need, Setup
from ipg.methods.dkt_policy import Strategy
from ipg.methods.options import option
from ipg.methods.parts import class_rows, means_by
from ipg.methods.space import Choice, Range
from ipg.rationale import HeadTap, find_head, full_precision

__all__ = ["Dkt", "shift"]


@dataclass(frozen=True)
class DktOptions:
    """β, λ, κ, the share of the run over which the first two rise, how statistics follow, and who picks β and λ."""

    mean: float = option(0.5, least=0)
    spread: float = option(0.5, least=0)
    transferred: float = option(1.0, least=0, most=1)
    ramp: float = option(1.0, least=0, most=1)
    pace: float = option(0.1, above=0, most=1)
    attached: bool = False
    policy: Literal["fixed", "learned"] = "fixed"


class Dkt(Method):
    """Cross-entropy of features as they are, and moved to the other attribute of their class."""

    name: ClassVar[str] = "dkt"
    summary: ClassVar[str] = "DKT (re-derived): classifies features also as if they had the other attribute."
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})
    cost: ClassVar[str] = "1; policy=learned also looks at 64 validation images"
    alone: ClassVar[str] = "keeps statistics of whole batches"
    Options: ClassVar[type] = DktOptions
    space: ClassVar[Mapping[str, Range]] = {
        "mean": Choice((0.25, 0.5, 1.0)),
        "spread": Choice((0.1, 0.5, 1.0)),
        "transferred": Choice((0.5, 1.0)),
        "attached": Choice((False, True)),
    }

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> frozenset[Need]:
        """Also the groups of validation images with policy=learned."""
        return cls.needs | ({"validation groups"} if options.get("policy") == "learned" else set())

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options, table = cast(DktOptions, self.options), cast(ImageTable, setup.table)
        self.shape = (table.num_classes, len(table.attributes))
        counts = torch.bincount(table.group, minlength=len(table.group_names))
        if int((counts.view(self.shape) > 0).sum(dim=1).max()) < 2:
            raise ValueError(
                "dkt moves images to the other attribute of their class, and no class has training images of two: "
                "take a method that needs no groups (`ipg methods`)"
            )
        if options.policy == "learned" and setup.validation is None:
            raise ValueError("policy=learned is rewarded on validation images, and there are none: take policy=fixed")
        self.tap = HeadTap(find_head(setup.model))
        weight = full_precision(self.tap.head.weight.detach())
        groups, width = len(table.group_names), weight.shape[1]
        self.kept = {
            "mean": weight.new_zeros(groups, width),
            "variance": weight.new_zeros(groups, width),
            "seen": torch.zeros(groups, dtype=torch.bool, device=weight.device),
            "steps": weight.new_zeros(()),
        }
        """What a checkpoint keeps; overwritten in place."""
        self._rise = max(options.ramp * setup.config.iterations(len(table)), 1e-12)
        self.strategy = Strategy(setup, counts) if options.policy == "learned" else None

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the loss of the moved features, and one of the strategy where there is one."""
        setup, options = self.setup, cast(DktOptions, self.options)
        setup.optimizer.zero_grad()
        with self.tap.listen():
            logits = setup.logits(batch.image)
        features, _ = self.tap.take()
        means = self._follow(full_precision(features), batch.group)
        strength = (self.kept["steps"] / self._rise).clamp_max(1)
        if self.strategy is None:
            mean, spread = strength * options.mean, strength * options.spread
        else:
            mean, spread = (strength * value for value in self.strategy.choose(logits.detach(), batch))
        towards, variance = self.transfer(means)
        weight = class_rows(full_precision(self.tap.head.weight))
        moved = shift(weight, batch.label, towards[batch.group], variance[batch.group], mean, spread)
        share = options.transferred
        as_it_is, elsewhere = (setup.criterion(each, batch.label) for each in (logits, logits + moved))
        loss = (1 - share) * as_it_is + share * elsewhere
        loss.backward()  # type: ignore[no-untyped-call]
        setup.optimizer.step()
        self.kept["steps"] += 1
        report = {"task_loss": loss.detach(), "shift": moved.detach().abs().mean()}
        return report if self.strategy is None else report | self.strategy.learn()

    def _follow(self, features: Tensor, group: Tensor) -> Tensor:
        """Let the statistics of the groups follow those of a batch; the first are taken as they are.

        Returns:
            The means, (G, D), with the derivative of the batch's own where they are attached.
        """
        mean, variance, seen = (self.kept[name] for name in ("mean", "variance", "seen"))
        batch_mean, counts = means_by(features, group, len(mean))
        new_mean = batch_mean.detach()
        new_variance, _ = means_by((features.detach() - new_mean[group]).square(), group, len(mean))
        old = seen.to(mean.dtype)
        pace = (1 - old + old * cast(DktOptions, self.options).pace) * (counts > 0)
        pace = pace[:, None]  # (G, 1)
        moved = new_mean - mean
        variance.copy_((1 - pace) * (variance + pace * moved.square()) + pace * new_variance)
        mean.add_(pace * moved)
        seen.logical_or_(counts > 0)
        return mean + (batch_mean - new_mean) if cast(DktOptions, self.options).attached else mean

    def transfer(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """μ_{y,a'} − μ_{y,a} from means (G, D), and Σ_{y,a'}, of every group; 0 where either has not been seen."""
        seen = self.kept["seen"].view(self.shape)  # (K, A)
        other = ~torch.eye(self.shape[1], dtype=torch.bool, device=seen.device)
        pairs = (other & seen[:, None, :] & seen[:, :, None]).to(self.kept["mean"].dtype)  # (K, A, A')
        number = pairs.sum(dim=2, keepdim=True)
        pairs = pairs / number.clamp_min(1)
        mean, variance = (values.view(*self.shape, -1) for values in (means, self.kept["variance"]))
        towards = pairs @ mean - mean * (number > 0)
        return towards.flatten(0, 1), (pairs @ variance).flatten(0, 1)

    def close(self) -> None:
        """Take the hook off the head."""
        self.tap.remove()

    def state_dict(self) -> dict[str, Any]:
        """The statistics, the count of steps, and the strategy."""
        state: dict[str, Any] = {name: value.clone() for name, value in self.kept.items()}
        return state if self.strategy is None else state | {"strategy": self.strategy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; tensors keep their place, as captured graphs need."""
        for name, value in self.kept.items():
            value.copy_(state[name])
        if self.strategy is not None:
            self.strategy.load_state_dict(state["strategy"])


def shift(weight: Tensor, label: Tensor, towards: Tensor, variance: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """s (B, K): what the logits of images gain when their features are moved.

    Args:
        weight: W of the last layer, (K, D).
        label: y, (B,).
        towards: μ_{y,a'} − μ_{y,a}, (B, D).
        variance: the diagonal of Σ_{y,a'}, (B, D).
        mean: β, a scalar or (B,).
        spread: λ, a scalar or (B,).
    """
    own = label[:, None]
    along = towards @ weight.T  # (B, K)
    squares = variance @ weight.square().T  # (B, K)
    mixed = (variance * weight[label]) @ weight.T  # (B, K)
    linear = along - along.gather(1, own)
    quadratic = squares - 2 * mixed + squares.gather(1, own)
    return mean[..., None] * linear + 0.5 * spread[..., None] * quadratic
