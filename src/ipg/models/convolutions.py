"""Convolutions whose gradients can be differentiated at the cost of a few convolutions.

Torch differentiates the gradient of a grouped convolution one group at a time, and the depthwise layers of MobileNetV2
have 7,136 groups; that of a plain one by a convolution whose kernel is as large as the image, for which GPUs have no
fast way. But three maps are enough, each linear in both of its arguments:

    A(x, w) = y     the convolution
    B(g, w)         what a gradient g of y gives back to x
    C(g, x)         what it gives to w

Their gradients are each other: of A they are B(g, w) and C(g, x); of B with g' against x, A(g', w) and C(g, g'); of C
with g' against w, A(x, g') and B(g, g'). So nothing but A, B and C is ever computed, however often one differentiates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.models.swapping import Swapped, swap, swap_back

__all__ = ["as_before", "differentiable_twice"]


def differentiable_twice(model: nn.Module) -> None:
    """Have the convolutions of `model` run so, in place.

    Plain ones with a bias, which networks with norms do not have, stay: to the bit they add it otherwise.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and (module.groups > 1 or module.bias is None) and _has_border_of_zeros(module):
            swap(module, ConvolutionOf)


def as_before(model: nn.Module) -> None:
    """Have the convolutions of `model` run as they did before `differentiable_twice`, in place."""
    swap_back(model, ConvolutionOf)


def _has_border_of_zeros(layer: nn.Conv2d) -> bool:
    return isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"


class ConvolutionOf(Swapped):
    """A convolution, with zeros around its input."""

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of `x` (B, C, H, W)."""
        layer: Any = self
        if not torch.is_grad_enabled():
            return super().forward(x)  # type: ignore[no-any-return]
        weight, bias = layer.weight, layer.bias
        kind = x.device.type
        if torch.is_autocast_enabled(kind):  # or gradients of two precisions would meet
            dtype = torch.get_autocast_dtype(kind)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        with torch.autocast(kind, enabled=False):
            y: Tensor = _Convolve.apply(x, weight, _Shape(layer.stride, layer.padding, layer.dilation, layer.groups))
        return y if bias is None else y + bias[:, None, None]


@dataclass(frozen=True)
class _Shape:
    """Of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def back(self, g: Tensor, x: Tensor, w: Tensor, *, to_weight: bool) -> Tensor:
        """What `g` gives back to `x`, or to `w`; of the other its shape alone is looked at."""
        sizes = (list(self.stride), list(self.padding), list(self.dilation), False, [0, 0], self.groups)
        mask = [not to_weight, to_weight, False]
        found = torch.ops.aten.convolution_backward(g, x, w, None, *sizes, mask)
        given: Tensor = found[1 if to_weight else 0]
        return given


class _Convolve(torch.autograd.Function):
    """A(x, w)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, shape: _Shape) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.shape = shape
        return F.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation, shape.groups)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,), (x, w) = grads, ctx.saved_tensors
        to_x = _ToInput.apply(g, w, x.detach(), ctx.shape) if ctx.needs_input_grad[0] else None
        to_w = _ToWeight.apply(g, x, w.detach(), ctx.shape) if ctx.needs_input_grad[1] else None
        return to_x, to_w, None


class _ToInput(torch.autograd.Function):
    """B(g, w), shaped as `like`."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, w: Tensor, like: Tensor, shape: _Shape) -> Tensor:
        ctx.save_for_backward(g, w)
        ctx.shape = shape
        return shape.back(g, like, w, to_weight=False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (other,), (g, w) = grads, ctx.saved_tensors
        to_g = _Convolve.apply(other, w, ctx.shape) if ctx.needs_input_grad[0] else None
        to_w = _ToWeight.apply(g, other, w.detach(), ctx.shape) if ctx.needs_input_grad[1] else None
        return to_g, to_w, None, None


class _ToWeight(torch.autograd.Function):
    """C(g, x), shaped as `like`."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, like: Tensor, shape: _Shape) -> Tensor:
        ctx.save_for_backward(g, x)
        ctx.shape = shape
        return shape.back(g, x, like, to_weight=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (other,), (g, x) = grads, ctx.saved_tensors
        to_g = _Convolve.apply(x, other, ctx.shape) if ctx.needs_input_grad[0] else None
        to_x = _ToInput.apply(g, other, x.detach(), ctx.shape) if ctx.needs_input_grad[1] else None
        return to_g, to_x, None, None
