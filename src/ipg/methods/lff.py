"""Learning from Failure: a second network is made to lean on the shortcut, and what it fails at counts more.

Nam, Cha, Ahn, Lee and Shin, "Learning from Failure: Training Debiased Classifier from Biased Classifier", NeurIPS 2020,
Algorithm 1. The biased network B learns by generalised cross-entropy, which prefers what is easy, the debiased one D by
a weight for each image:

    L_B = 1/n Σ_i q p_B(y_i|x_i)^q · CE_B(i),    q p^q held constant
    L_D = 1/n Σ_i w_i · CE_D(i),    w_i = l_B(i) / (l_B(i) + l_D(i) + 1e-8)

where l(i) is the moving average of an image's loss (0.7 of the old, 0.3 of the new; the first as it is), divided by the
largest of its class. D is the network of the run; B is thrown away. BatchNorm statistics are kept or updated in both
alike, as `batch_norm` says.

Differs from the paper: B starts from weights of its own, drawn from the seed as the run's network is; of a pretrained
network that is the head alone. No layer is frozen, as the authors' loader does with ResNet. Losses are not weighted by
class.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.batches import Batch
from ipg.evaluation.batch_norm import keep_statistics
from ipg.methods.base import Method, Setup
from ipg.methods.optimizers import load_optimizer
from ipg.methods.options import option
from ipg.methods.space import Choice, Range
from ipg.models.bcos import BcosNet
from ipg.models.head import renew_head
from ipg.rationale import unwrap
from ipg.seeds import derive_seed

__all__ = ["Lff"]


@dataclass(frozen=True)
class LffOptions:
    """How strongly the biased network prefers what is easy, and how long losses are remembered."""

    amplification: float = option(0.7, above=0, most=1)
    memory: float = option(0.7, least=0, most=1)


class Lff(Method):
    """Two networks: one fails where the shortcut does, the other learns from that."""

    name: ClassVar[str] = "lff"
    summary: ClassVar[str] = "Learning from Failure: images that a biased second network fails at count more."
    weighs_classes: ClassVar[bool] = False
    cost: ClassVar[str] = "2"
    alone: ClassVar[str] = "remembers the loss of every image"
    Options: ClassVar[type] = LffOptions
    space: ClassVar[Mapping[str, Range]] = {"amplification": Choice((0.3, 0.5, 0.7, 0.9))}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.make_optimizer is None or setup.table is None:
            raise ValueError("lff trains a second network: its Setup needs make_optimizer and table")
        self.biased = replace(setup, model=_second(setup))
        self.biased_optimizer = setup.make_optimizer(self.biased.model)
        self.label, classes = setup.table.label, setup.table.num_classes
        parameter = next(setup.model.parameters())
        self.memory = parameter.new_zeros(2, len(self.label), requires_grad=False)  # (2, N); of B, of D
        self.seen = torch.zeros_like(self.label, dtype=torch.bool)  # (N,)
        self._none = self.memory.new_zeros(2, classes)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step of each network."""
        setup, q = self.setup, cast(LffOptions, self.options).amplification
        self._follow_rate()
        for optimizer in (setup.optimizer, self.biased_optimizer):
            optimizer.zero_grad()
        easy, hard = (
            F.cross_entropy(each.logits(batch.image), batch.label, reduction="none") for each in (self.biased, setup)
        )
        weight = self._weight(torch.stack([easy, hard]).detach(), batch)
        biased_loss = (q * torch.exp(-q * easy.detach()) * easy).mean()  # p = exp(−CE)
        loss = (weight * hard).mean()
        (biased_loss + loss).backward()  # type: ignore[no-untyped-call]
        for optimizer in (setup.optimizer, self.biased_optimizer):
            optimizer.step()
        return {"task_loss": loss.detach(), "biased_loss": easy.detach().mean(), "weight": weight.mean()}

    def _weight(self, losses: Tensor, batch: Batch) -> Tensor:
        """w (B,) from the losses (2, B) of both networks, which are remembered."""
        keep, rows = cast(LffOptions, self.options).memory, batch.row
        mean = torch.where(self.seen[rows], keep * self.memory[:, rows] + (1 - keep) * losses, losses)
        self.memory.index_copy_(1, rows, mean)
        self.seen.index_fill_(0, rows, True)
        largest = self._none.scatter_reduce(1, self.label.expand(2, -1), self.memory, "amax")  # (2, K)
        relative = mean / largest[:, batch.label].clamp_min(torch.finfo(mean.dtype).tiny)  # (2, B)
        return relative[0] / (relative.sum(dim=0) + 1e-8)

    def _follow_rate(self) -> None:
        """Give the second optimizer the rate that the loop has set for the first."""
        groups = zip(self.biased_optimizer.param_groups, self.setup.optimizer.param_groups, strict=True)
        for own, group in groups:
            if isinstance(own["lr"], Tensor):
                own["lr"].copy_(group["lr"])  # in place: captured graphs read it there
            else:
                own["lr"] = group["lr"]

    def state_dict(self) -> dict[str, Any]:
        """The second network with its optimizer, and the losses that are remembered."""
        return {
            "model": {name: value.clone() for name, value in self.biased.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.biased_optimizer.state_dict()),
            "memory": self.memory.clone(),
            "seen": self.seen.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.biased.model.load_state_dict(state["model"])
        load_optimizer(self.biased_optimizer, copy.deepcopy(state["optimizer"]))
        self.memory.copy_(state["memory"])
        self.seen.copy_(state["seen"])


def _second(setup: Setup) -> nn.Module:
    """A network like the run's with weights of its own, drawn on the CPU; a pretrained one keeps all but its head."""
    given = unwrap(setup.model)
    pretrained = setup.config.weights is not None or setup.config.start is not None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(setup.config.seed, "biased network"))
        if setup.make_network is not None and not pretrained:
            model = setup.make_network()
        else:
            model = copy.deepcopy(given).cpu()
            (_renew if pretrained else _redraw)(model)
    model.to(next(given.parameters()).device).train()
    if setup.config.suited().batch_norm == "eval":
        keep_statistics(model)
    return model


def _renew(model: nn.Module) -> None:
    """Draw the head of `model` anew, as new heads are drawn."""
    if isinstance(model, BcosNet):
        model.head.reset_parameters()
    else:
        renew_head(model)


def _redraw(model: nn.Module) -> None:
    """Draw anew the weights of a network that came as an object, as far as its layers say how; what is frozen stays.

    What they leave as it was, such as a bare parameter, has its entries put in another order: as good as new where all
    were drawn alike, and nothing happens where all are equal.
    """
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for module in _inside_out(model):
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset) and any(parameter.requires_grad for parameter in module.parameters()):
            reset()
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), before, strict=True):
            if not parameter.requires_grad:
                parameter.copy_(old)
            elif torch.equal(parameter, old):
                parameter.copy_(old.flatten()[torch.randperm(old.numel())].view_as(old))


def _inside_out(module: nn.Module) -> Iterator[nn.Module]:
    """All modules, each after those inside it, as they are drawn when they are made."""
    for child in module.children():
        yield from _inside_out(child)
    yield module
