"""Small seeded models, batches and pairs for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.guidance import Pairs

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5}),
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(*, classes: int = 2, inputs: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A perceptron with two hidden layers whose last layer is the head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, classes)]
        return nn.Sequential(*layers).to(dtype)


def batch(
    n: int = 12, *, classes: int = 2, inputs: int = 6, seed: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """A task batch whose label hides in the first column and, louder, in the last."""
    generator = seeded(seed)
    y = torch.randint(classes, (n,), generator=generator)
    x = torch.randn(n, inputs, generator=generator, dtype=dtype)
    x[:, 0] += y
    x[:, -1] = 3.0 * y - 1
    return x, y


def pairs(
    n: int = 6,
    *,
    classes: int = 2,
    inputs: int = 6,
    seed: int = 2,
    dtype: torch.dtype = torch.float64,
    shift: float = 3.0,
) -> Pairs:
    """Pairs that differ in the last column alone; with two pairs or more at least two labels occur."""
    generator = seeded(seed)
    first = torch.randn(n, inputs, generator=generator, dtype=dtype)
    second = first.clone()
    second[:, -1] += shift
    label = torch.randint(classes, (n,), generator=generator)
    label[:2] = torch.arange(classes)[:2][:n]
    return Pairs(first, second, label)


class Sampler:
    """A new batch of pairs at every draw, and a count of the draws."""

    def __init__(self, start: int = 0, **options: Any) -> None:
        self.drawn = start
        self.options = options

    def draw(self) -> Pairs:
        self.drawn += 1
        return pairs(seed=100 + self.drawn, **self.options)


def bits(module: nn.Module) -> Tensor:
    """All parameters and buffers in one vector."""
    return torch.cat([value.detach().double().flatten() for value in module.state_dict().values()])


def state_bits(optimizer: torch.optim.Optimizer) -> Tensor:
    """Everything an optimizer remembers in one vector."""
    state = optimizer.state_dict()["state"].values()
    values = [torch.as_tensor(v).double().flatten() for entry in state for v in entry.values() if v is not None]
    return torch.cat(values) if values else torch.zeros(0)


class Modes(nn.Module):
    """Notes the mode of every module at each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 2)
        self.seen: list[dict[str, bool]] = []
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append({name: module.training for name, module in self.named_modules() if name})
        if self.fail:
            raise KeyError("planted")
        hidden = F.dropout(self.norm(self.body(x)).relu(), 0.5, self.training)  # a functional dropout as well
        return self.head(self.drop(hidden))


def build(model: nn.Module, name: str = "sgd") -> torch.optim.Optimizer:
    """An optimizer of `OPTIMIZERS` over all parameters."""
    kind, options = OPTIMIZERS[name]
    return kind(model.parameters(), **options)


def watch_gradients(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """The gradients that each coming update is made with."""
    seen: list[list[Tensor]] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        seen.append([p.grad.clone() for p in parameters])

    optimizer.register_step_pre_hook(keep)
    return seen


def task(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """The task loss of a batch."""
    return lambda: F.cross_entropy(model(batch[0]), batch[1])
