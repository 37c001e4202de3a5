"""How unlike the pairs are to the task images where BatchNorm keeps statistics of both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ipg.evaluation.groups import evaluating
from ipg.modes import is_batch_norm

__all__ = ["batch_norm_gap", "keep_statistics"]

MOST_IMAGES = 256
"""Images of each kind that are looked at: enough for means by channel."""


def batch_norm_gap(
    model: nn.Module, pair_images: Sequence[Tensor], task_images: Tensor, *, autocast: torch.dtype | None = None
) -> float | None:
    """How far the means by channel of pair and task images lie apart at the BatchNorm layer where it is most.

    In standard deviations of the task images, as a root mean square over channels; None for a network without such
    layers. The model's state is left as it is.

    Args:
        model: the network.
        pair_images: the members of pairs, the first and the second apart; uint8, on any device.
        task_images: those of the task, likewise.
        autocast: the dtype the network computes in, where that is not its own.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers or not sum(map(len, pair_images)) or not len(task_images):
        return None
    place = next(model.parameters(), task_images).device
    with torch.autocast(place.type, dtype=autocast, enabled=autocast is not None):
        pairs, task = (_moments(model, layers, _some(*images).to(place)) for images in (pair_images, [task_images]))
    gaps = [
        ((mean - task_mean).square() / variance.clamp_min(1e-12)).mean().sqrt()
        for (mean, _), (task_mean, variance) in zip(pairs, task, strict=True)
    ]
    return float(torch.stack(gaps).max()) if gaps else None


def keep_statistics(model: nn.Module) -> None:
    """Put the BatchNorm layers of `model` in eval mode: they use the statistics they have, and keep them."""
    for module in model.modules():
        if is_batch_norm(module):
            module.eval()


def _some(*parts: Tensor) -> Tensor:
    """At most `MOST_IMAGES` of the images of all `parts`, taken as one, from everywhere among them."""
    step, before = -(-sum(map(len, parts)) // MOST_IMAGES), 0
    taken = []
    for part in parts:
        taken.append(part[-before % step :: step])
        before += len(part)
    return torch.cat(taken)


def _moments(model: nn.Module, layers: list[_BatchNorm], images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance by channel of what enters each of `layers`, in the order in which they run."""
    found: list[tuple[Tensor, Tensor]] = []

    def note(found: list[tuple[Tensor, Tensor]], module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        channels = inputs[0].float().transpose(0, 1).flatten(1)  # (C, B · positions)
        found.append((channels.mean(dim=1), channels.var(dim=1, unbiased=False)))

    hooks = [layer.register_forward_pre_hook(partial(note, found)) for layer in layers]
    try:
        with evaluating(model):
            model(images.float() / 255)
    finally:
        for hook in hooks:
            hook.remove()
    return found
