"""Who picks how far DKT moves an image: a small network that learns from the loss on validation images.

    (loss, margin, frequency of the class, of the group) → π over the grid β × λ
    reward r = −(mean over groups of the validation loss after the step),    r̄ ← 0.9 r̄ + 0.1 r
    ascend (r − r̄) · mean_i log π(action_i)

Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", 1992 (REINFORCE).
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.evaluation.groups import evaluating
from ipg.methods.base import Setup
from ipg.methods.optimizers import load_optimizer
from ipg.methods.parts import means_by
from ipg.rationale import full_precision
from ipg.seeds import derive_seed

__all__ = ["BETAS", "LAMBDAS", "Strategy"]

BETAS = (0.25, 0.5, 1.0)
LAMBDAS = (0.1, 0.5, 1.0)
RATE = 1e-3
MEMORY = 0.9
"""Share of the old in the moving mean of rewards."""
JUDGED = 64
"""Validation images that a reward is of."""


class Strategy:
    """Picks β and λ for every image of a batch, and is told what came of it.

    Args:
        setup: whose network is judged on whose validation images.
        counts: training images of every group, (G,).
    """

    def __init__(self, setup: Setup, counts: Tensor) -> None:
        self.setup, self.validation = setup, cast(ImageTable, setup.validation)
        self.device = device = next(setup.model.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(setup.config.seed, "strategy"))
            network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, len(BETAS) * len(LAMBDAS)))
        self.network = network.to(device)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=RATE, fused=device.type != "mps", capturable=device.type == "cuda"
        )
        table = cast(ImageTable, setup.table)
        share = (counts / counts.sum()).float().to(device)
        by_class = share.view(table.num_classes, -1).sum(dim=1, keepdim=True)
        self.frequency = torch.stack([by_class.expand(-1, len(table.attributes)).flatten(), share], dim=1)  # (G, 2)
        grid = torch.cartesian_prod(torch.tensor(BETAS), torch.tensor(LAMBDAS))
        self.grid = grid.to(device)  # (actions, 2)
        self.baseline, self.rewards = (torch.zeros((), device=device) for _ in range(2))
        self._chance = torch.zeros((), device=device)  # the mean log π of the last choice, with its graph

    def choose(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """β and λ of every image, (B,) each, drawn by the network."""
        scores = F.log_softmax(self.network(self._view(logits, batch)), dim=1)  # (B, actions)
        noise = -torch.log(-torch.log(torch.rand_like(scores).clamp(1e-12, 1 - 1e-7)))
        action = (scores.detach() + noise).argmax(dim=1)  # a draw, without asking the device
        self._chance = scores.gather(1, action[:, None]).mean()
        mean, spread = self.grid[action].unbind(dim=1)
        return mean, spread

    def learn(self) -> dict[str, Tensor]:
        """Judge the network as it now is, and make what led to it more or less likely."""
        reward = -self._validation_loss()
        advantage = torch.where(self.rewards > 0, reward - self.baseline, 0)
        keep = torch.where(self.rewards > 0, MEMORY, 0.0)
        self.optimizer.zero_grad()
        (-advantage * self._chance).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.baseline.copy_(keep * self.baseline + (1 - keep) * reward)
        self.rewards += 1
        return {"reward": reward}

    def _view(self, logits: Tensor, batch: Batch) -> Tensor:
        """What the network sees of every image, (B, 4)."""
        logits = logits.float()
        loss = F.cross_entropy(logits, batch.label, reduction="none")
        own = logits.gather(1, batch.label[:, None])[:, 0]
        rest = logits.scatter(1, batch.label[:, None], -torch.inf).amax(dim=1)
        return torch.cat([torch.stack([loss, own - rest], dim=1), self.frequency[batch.group]], dim=1)

    def _validation_loss(self) -> Tensor:
        """The mean over groups of the loss on some validation images, drawn anew."""
        table = self.validation
        rows = torch.randint(len(table), (JUDGED,), device=table.label.device)
        images = table.images[rows.to(table.images.device)].to(self.device).float() / 255
        with evaluating(self.setup.model):
            logits = full_precision(self.setup.logits(images))
            each = F.cross_entropy(logits, table.label[rows], reduction="none").float()
        losses, counts = means_by(each, table.group[rows], len(table.group_names))
        return losses.sum() / (counts > 0).sum()

    def state_dict(self) -> dict[str, Any]:
        """The network, its optimizer and the moving mean."""
        return {
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "baseline": self.baseline.clone(),
            "rewards": self.rewards.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.network.load_state_dict(state["network"])
        load_optimizer(self.optimizer, copy.deepcopy(state["optimizer"]))
        self.baseline.copy_(state["baseline"])
        self.rewards.copy_(state["rewards"])
