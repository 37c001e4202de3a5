"""X-DNNs: networks without any bias, so that logits are o(c x) = c o(x) and input times gradient sums to them.

Hesse, Schaub-Meyer and Roth, "Fast Axiomatic Attribution for Neural Networks", NeurIPS 2021. Normalisation layers and
biases are taken out, convolutions and ReLU stay. A ResNet is begun as Fixup begins it (Zhang, Dauphin and Ma, "Fixup
Initialization: Residual Learning Without Normalization", ICLR 2019), without its scalar biases and scales: with L
blocks of m convolutions,

    all but a block's last: He's scale times L^(−1/(2m−2));    a block's last: 0

Differs from the paper: any small network or ResNet of timm can be converted; the head begins at the small scale that
all heads here have, not at 0.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ipg.models.convert import Rules, convert, kept
from ipg.models.small import FirstConv2d

__all__ = ["make_xdnn"]


def make_xdnn(model: nn.Module, *, name: str) -> None:
    """Take normalisation and biases out of `model` and begin it anew, in place; `name` is what it is called."""
    convert(model, RULES, name=name)
    blocks = [module for module in model.modules() if hasattr(module, "conv1") and hasattr(module, "conv2")]
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for block in blocks:
        *first, last = (getattr(block, inner) for inner in ("conv1", "conv2", "conv3") if hasattr(block, inner))
        with torch.no_grad():
            for convolution in first:
                convolution.weight.mul_(len(blocks) ** (-0.5 / len(first)))
        nn.init.zeros_(last.weight)


def _without_bias(layer: nn.Module) -> nn.Module:
    cast(nn.Conv2d | nn.Linear, layer).bias = None
    return layer


def _nothing(layer: nn.Module) -> nn.Module:
    del layer
    return nn.Identity()


RULES: Rules = {
    nn.Conv2d: _without_bias,
    FirstConv2d: _without_bias,
    nn.Linear: _without_bias,
    nn.BatchNorm2d: _nothing,
    nn.GroupNorm: _nothing,
    **dict.fromkeys((nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity), kept),
}
