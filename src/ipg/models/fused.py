"""The bias of a convolution, ReLU and GroupNorm, and the mean over positions, in few passes over memory, on a GPU.

    y = GroupNorm(ReLU(x + bias)), or its mean over positions

As written each of them reads and writes all activations, GroupNorm twice, and of a small network that is half of an
iteration. Here the forward pass brings x once into the cache and writes y, the backward pass x and dy, and writes dx.
Sums are taken in single precision and in a fixed order, so that the same input gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    from ipg.models import fused_kernels as kernels
except ImportError:  # without triton, which comes with torch where there may be a GPU
    kernels = None  # type: ignore[assignment]

__all__ = ["relu_group_norm"]

CHANNELS = 64
"""That a block of threads takes, if it can have whole groups so; of one image."""
ENTRIES = 2048
"""That four warps take at a time. Of many positions eight take four times as many: more is on its way at once."""
MANY = 512


def relu_group_norm(
    x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, *, groups: int, eps: float = 1e-5, pooled: bool = False
) -> Tensor:
    """`GroupNorm(ReLU(x + bias))`, computed in single precision.

    Args:
        x: what a convolution gives without its bias, (B, C, H, W).
        bias: of the convolution, (C,).
        weight: of GroupNorm, (C,).
        shift: the bias of GroupNorm, (C,).
        groups: how many.
        eps: added to the variance.
        pooled: give the mean over positions, (B, C), in single precision, in place of all in the precision of `x`.
    """
    if kernels is None or not _is_power_of_two(x.shape[1] // groups):
        return _written(x, bias, weight, shift, groups, eps, pooled)
    y: Tensor = _fused(x, bias, weight, shift, groups, eps, pooled)[0]
    return y


def _written(x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, groups: int, eps: float, pooled: bool) -> Tensor:
    """The same by the operations of torch."""
    with torch.autocast(x.device.type, enabled=False):
        y = F.group_norm(F.relu(x.float() + bias[:, None, None]), groups, weight, shift, eps)
        return y.mean(dim=(2, 3)) if pooled else y.to(x.dtype)


@torch.library.custom_op("ipg::relu_group_norm", mutates_args=())
def _fused(
    x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, groups: int, eps: float, pooled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What `relu_group_norm` gives, and the mean and the inverse spread of its group for every image and channel."""
    x = x.contiguous(memory_format=torch.channels_last)
    mean, inverse = (torch.empty(x.shape[:2], dtype=torch.float32, device=x.device) for _ in range(2))
    y = torch.empty_like(mean if pooled else x)
    grid, sizes = _blocks(x, groups)
    positions, channels = x.shape[2] * x.shape[3], x.shape[1]
    kernels.forward_kernel[grid](
        x, bias, weight, shift, y, mean, inverse, positions, channels, eps, pooled=pooled, **sizes
    )
    return y, mean, inverse


@torch.library.custom_op("ipg::relu_group_norm_backward", mutates_args=())
def _fused_backward(
    dy: Tensor, x: Tensor, bias: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and each image's part in those of weight, shift and bias, (B, 3, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    pooled = dy.ndim == 2
    dy = dy.contiguous() if pooled else dy.contiguous(memory_format=torch.channels_last)
    dx = torch.empty_like(x)
    parts = torch.empty(x.shape[0], 3, x.shape[1], dtype=torch.float32, device=x.device)
    grid, sizes = _blocks(x, groups)
    positions, channels = x.shape[2] * x.shape[3], x.shape[1]
    kernels.backward_kernel[grid](
        dy, x, bias, weight, mean, inverse, dx, parts, positions, channels, pooled=pooled, **sizes
    )
    return dx, parts


@_fused.register_fake
def _(
    x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, groups: int, eps: float, pooled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    mean, inverse = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(2))
    y = torch.empty_like(mean) if pooled else torch.empty_like(x, memory_format=torch.channels_last)
    return y, mean, inverse


@_fused_backward.register_fake
def _(
    dy: Tensor, x: Tensor, bias: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    return dx, x.new_empty((x.shape[0], 3, x.shape[1]), dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, bias, weight, shift, ctx.groups, ctx.eps, ctx.pooled = inputs
    _, mean, inverse = output
    ctx.save_for_backward(x, bias, weight, shift, mean, inverse)


def _differentiate(ctx: Any, dy: Tensor, _mean: Tensor, _inverse: Tensor) -> tuple[Tensor | None, ...]:
    x, bias, weight, shift, mean, inverse = ctx.saved_tensors
    if torch.is_grad_enabled():  # somebody will differentiate the gradient, too
        inputs = (x, bias, weight, shift)
        y = _written(*inputs, ctx.groups, ctx.eps, ctx.pooled)
        wanted = [each for each in inputs if each.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
        return *(next(found) if each.requires_grad else None for each in inputs), None, None, None
    dx, parts = _fused_backward(dy, x, bias, weight, mean, inverse, ctx.groups)
    dweight, dshift, dbias = parts.sum(0).unbind()
    return dx, dbias, dweight, dshift, None, None, None


_fused.register_autograd(_differentiate, setup_context=_keep)


def _blocks(x: Tensor, groups: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of blocks of threads, and what each of them takes."""
    width = x.shape[1] // groups
    together = 1
    while 2 * together * width <= CHANNELS and groups % (2 * together) == 0:
        together *= 2
    entries, warps = (4 * ENTRIES, 8) if x.shape[2] * x.shape[3] >= MANY else (ENTRIES, 4)
    span = max(1, entries // (together * width))
    return (x.shape[0], groups // together), {"span": span, "groups": together, "width": width, "num_warps": warps}


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0
