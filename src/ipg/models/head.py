"""The head of a network: made anew at one small scale, and trained alone where the rest is frozen."""

from __future__ import annotations

from torch import nn

from ipg.models.image_model import ImageModel
from ipg.rationale import find_head

__all__ = ["HEAD_STD", "freeze", "head_name", "renew_head"]

HEAD_STD = 0.016
"""Standard deviation of a new head's weights, whatever the family; its bias is zero.

Rationales are features times weights, so this sets the unit of all their distances. timm's families start their heads
anywhere from 0 to 0.41; most lie between 0.01 and 0.02, and `nn.Linear` over 1,280 features has 0.016.
"""


def renew_head(model: nn.Module) -> nn.Linear:
    """Draw the weights of the head of `model` anew, from torch's default generator, and return it."""
    head = find_head(model)
    nn.init.normal_(head.weight, std=HEAD_STD)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    return head


def head_name(model: nn.Module) -> str:
    """What the head is called among the modules of `model`."""
    head = find_head(model)
    names: list[str] = [name for name, module in model.named_modules() if module is head]
    return names[0]


def freeze(model: nn.Module) -> None:
    """Let only the head of `model` learn.

    An `ImageModel` keeps its backbone in eval mode from now on, so that BatchNorm keeps its statistics and dropout is
    off; in a network of another kind both follow `model.train()`.
    """
    model.requires_grad_(False)
    find_head(model).requires_grad_(True)
    if isinstance(model, ImageModel):
        model.frozen = True
        model.train(model.training)
