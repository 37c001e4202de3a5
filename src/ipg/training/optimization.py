"""What an iteration takes from the configuration: the optimizer, its rate, the weights of the classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ipg.collectives import in_shards
from ipg.config import RunConfig
from ipg.data.table import ImageTable

__all__ = ["class_weights", "learning_rate", "make_optimizer", "set_rate"]


def learning_rate(step: int, total: int, config: RunConfig) -> float:
    """The rate of iteration `step` (from 0) of `total`: linear warm-up, then as the schedule says."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "step":
        return config.learning_rate / (1 if step < total / 2 else 10)
    share = (step - config.warmup) / max(1, total - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def make_optimizer(model: nn.Module, config: RunConfig, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of a run; on a GPU in the form that can be captured, its rate a tensor there.

    Over parameters in shards (FSDP2), whose steps are never captured, it is in torch's ordinary form.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    cuda = device.type == "cuda" and not any(map(in_shards, parameters))
    rate: Any = torch.tensor(config.learning_rate, device=device) if cuda else config.learning_rate
    if config.optimizer == "sgd":
        fused = True if cuda else None  # the other form asks the device for its rate
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=config.weight_decay, fused=fused)
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    if cuda and config.engine == "compiled":  # its own kernel gives every tensor of a small network one block or few
        optimizer = kind(parameters, lr=rate, weight_decay=config.weight_decay, foreach=True, capturable=True)
        optimizer.step = torch.compile(optimizer.step, dynamic=False)  # type: ignore[method-assign, assignment]
        return optimizer
    fused = device.type != "mps"
    return kind(parameters, lr=rate, weight_decay=config.weight_decay, fused=fused, capturable=cuda)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give the optimizer its learning rate, where captured graphs read it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: captured graphs read it there
        else:
            group["lr"] = rate


def class_weights(table: ImageTable) -> Tensor:
    """w_c = N / (K N_c), (K,); 0 for a class without images, which no term of the loss ever uses."""
    counts = torch.bincount(table.label, minlength=table.num_classes).float()
    return torch.where(counts > 0, counts.sum() / (len(counts) * counts.clamp_min(1)), 0.0)
