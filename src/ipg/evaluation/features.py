"""What enters the head of a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipg.evaluation.groups import evaluating, evaluation_batch
from ipg.rationale import HeadTap, find_head

__all__ = ["features"]


def features(model: nn.Module, images: Tensor) -> Tensor:
    """What enters the head of `model` for each of the uint8 `images`, (N, D), in single precision."""
    device = next(model.parameters()).device
    tap = HeadTap(find_head(model))
    found: list[Tensor] = []
    try:
        with evaluating(model):
            for part in torch.split(images, evaluation_batch(images, device)):
                with tap.listen():
                    model(part.to(device).float() / 255)
                found.append(tap.take()[0])
    finally:
        tap.remove()
    return torch.cat(found)
