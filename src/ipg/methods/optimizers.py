"""Optimizers of the one loop, taken up again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["load_optimizer"]

OWN = ("lr", "foreach", "fused", "capturable")
"""The rate's place, its value is set before every step, and how updates are carried out."""


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Go on from a state whose tensors are on the CPU and contiguous, keeping what captured graphs and fused kernels
    rely on: the rate's own tensor, and states in the layout of their parameters.

    How updates are carried out is the optimizer's own: the state may come from another device or engine.
    """
    own = [{name: group[name] for name in OWN if name in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        group.update(kept)
    on_device = {
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if group.get("fused") or group.get("capturable")
    }
    for parameter, entry in optimizer.state.items():
        for name, value in entry.items():
            if isinstance(value, Tensor) and name == "step":
                entry[name] = value.to(parameter.device if parameter in on_device else "cpu")
            elif isinstance(value, Tensor) and value.shape == parameter.shape:
                entry[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
