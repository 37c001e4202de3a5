"""B-cos networks: their output is a linear map of the image whose weights depend on it, o = W(x) x, and say why.

Böhle, Fritz and Schiele, "B-cos Networks: Alignment is All We Need for Interpretability", CVPR 2022, with B = 2:

    B-cos(x; w) = |cos(x, ŵ)| · ŵᵀx,    ŵ = w / ‖w‖,    ‖x‖ of a patch as √(Σ x² + 1e-6)

There are no biases and no activations. Normalisation only divides by the spread; the stem pools by the mean; images in
[0, 1] enter as [x, 1 − x]; the head is a 1×1 B-cos convolution before the mean over positions; all logits are lowered
by log(0.999 / 0.001). While `explaining`, cosines and spreads are constants to a derivative by the input, which is then
W(x): Σ x · W(x) is the logit, but for what it is lowered by. What is derived from W(x) afterwards knows that they are
not constant, so that training can shape it.

Differs from the paper: any small network or ResNet of timm can be converted; its weights are random, or of a file that
has the names of timm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.models.convert import Rules, convert, kept
from ipg.models.small import FirstConv2d
from ipg.rationale import full_precision

__all__ = ["LOWERED", "BcosConv2d", "BcosNet", "explaining"]

LOWERED = math.log(0.999 / 0.001)
"""By how much all logits are lowered."""


class Dynamic(nn.Module):
    """A layer that multiplies by what depends on its input."""

    explaining = False
    """Whether a derivative takes that for a constant."""

    def held(self, factor: Tensor) -> Tensor:
        """`factor`, which hands no derivative on while the layer is explaining."""
        if factor.requires_grad:
            factor.register_hook(self._pass_on)  # type: ignore[no-untyped-call]
        return factor

    def _pass_on(self, slope: Tensor) -> Tensor:
        return torch.zeros_like(slope) if self.explaining else slope


class BcosConv2d(nn.Conv2d, Dynamic):
    """A convolution with unit weights, times the cosine between weights and patch."""

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of `x` (B, C, H, W)."""
        length: Tensor = torch.linalg.vector_norm(self.weight, dim=(1, 2, 3), keepdim=True)
        linear = F.conv2d(x, self.weight / length, None, self.stride, self.padding)
        kernel, stride, padding = (cast(tuple[int, int], s) for s in (self.kernel_size, self.stride, self.padding))
        squares = full_precision(x).square().sum(dim=1, keepdim=True)  # (B, 1, H, W)
        patches = F.avg_pool2d(squares, kernel, stride, padding) * math.prod(kernel)
        return linear * self.held(linear.abs() / (patches + 1e-6).sqrt())


class BatchScale2d(nn.BatchNorm2d, Dynamic):
    """BatchNorm that only divides by the spread: no mean is subtracted, no bias added."""

    def __init__(self, channels: int, *, eps: float, momentum: float) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, C, H, W) over its spread."""
        variance = cast(Tensor, self.running_var)
        if self.training:
            variance = full_precision(x).var(dim=(0, 2, 3), correction=0)
            cast(Tensor, self.running_var).lerp_(variance.detach(), cast(float, self.momentum))
        scale = self.held((variance + self.eps).rsqrt()[:, None, None])
        return x * scale * self.weight[:, None, None]


class GroupScale(nn.GroupNorm, Dynamic):
    """GroupNorm that only divides by the spread."""

    def __init__(self, groups: int, channels: int, *, eps: float) -> None:
        super().__init__(groups, channels, eps=eps)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, C, H, W) over the spread of each of its groups of channels."""
        parts = full_precision(x).reshape(len(x), self.num_groups, -1, *x.shape[2:])  # (B, G, C/G, H, W)
        scale = self.held((parts.var(dim=(2, 3, 4), correction=0, keepdim=True) + self.eps).rsqrt())
        return (parts * scale).flatten(1, 2) * self.weight[:, None, None]


def _convolution(layer: nn.Module) -> nn.Module:
    old = cast(nn.Conv2d, layer)
    if old.groups != 1 or old.dilation != (1, 1) or not isinstance(old.padding, tuple):
        raise ValueError(f"a convolution in groups or with gaps has no B-cos form here: {old}")
    kernel, stride, padding = (cast(tuple[int, int], s) for s in (old.kernel_size, old.stride, old.padding))
    return BcosConv2d(old.in_channels, old.out_channels, kernel, stride, padding, bias=False)


def _batch_scale(layer: nn.Module) -> nn.Module:
    old = cast(nn.BatchNorm2d, layer)
    return BatchScale2d(old.num_features, eps=old.eps, momentum=old.momentum or 0.1)


def _group_scale(layer: nn.Module) -> nn.Module:
    old = cast(nn.GroupNorm, layer)
    return GroupScale(old.num_groups, old.num_channels, eps=old.eps)


def _mean_pool(layer: nn.Module) -> nn.Module:
    old = cast(nn.MaxPool2d, layer)
    return nn.AvgPool2d(old.kernel_size, old.stride, old.padding)


RULES: Rules = {
    nn.Conv2d: _convolution,
    FirstConv2d: _convolution,
    nn.BatchNorm2d: _batch_scale,
    nn.GroupNorm: _group_scale,
    nn.MaxPool2d: _mean_pool,
    nn.ReLU: lambda _: nn.Identity(),
    nn.AvgPool2d: kept,
    nn.Identity: kept,
}


class BcosNet(nn.Module):
    """A B-cos network for images in [0, 1].

    Args:
        body: what makes feature maps (B, D, H, W) of twice the images' channels; converted in place.
        channels: of the images.
        features: D.
        classes: to tell apart.
        name: what it is called.
    """

    def __init__(self, body: nn.Module, *, channels: int, features: int, classes: int, name: str) -> None:
        super().__init__()
        convert(body, RULES, name=name)
        self.body, self.channels, self.name = body, channels, name
        self.head = BcosConv2d(features, classes, 1, bias=False)

    def encode(self, images: Tensor) -> Tensor:
        """What the first layer is given: images (B, C, H, W) and what they lack of white, (B, 2C, H, W)."""
        return torch.cat([images, 1 - images], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W), or of `encode(images)`."""
        encoded = self.encode(images) if images.shape[1] == self.channels else images
        logits: Tensor = self.head(self.body(encoded)).mean(dim=(2, 3)) - LOWERED
        return logits


@contextmanager
def explaining(network: nn.Module | None) -> Iterator[None]:
    """Inside, a derivative of the logits of a B-cos network by its input is W(x); nothing changes without a network."""
    layers = [] if network is None else [layer for layer in network.modules() if isinstance(layer, Dynamic)]
    for layer in layers:
        layer.explaining = True
    try:
        yield
    finally:
        for layer in layers:
            layer.explaining = False
