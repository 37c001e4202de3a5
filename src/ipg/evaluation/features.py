"""What enters the head of a network."""

from __future__ import annotations

from torch import Tensor, nn

from ipg.evaluation.groups import evaluating, evaluation_batch
from ipg.evaluation.parts import in_parts
from ipg.rationale import HeadTap, find_head

__all__ = ["features"]


def features(model: nn.Module, images: Tensor) -> Tensor:
    """What enters the head of `model` for each of the uint8 `images`, (N, D), in single precision."""
    device = next(model.parameters()).device
    tap = HeadTap(find_head(model))

    def of(part: Tensor) -> Tensor:
        with tap.listen():
            model(part.to(device).float() / 255)
        return tap.take()[0]

    try:
        with evaluating(model):
            return in_parts(of, images, evaluation_batch(images, device))
    finally:
        tap.remove()
