"""BatchNorm with the statistics that it has, and the ReLU or ReLU6 behind it, in one pass over memory, on a GPU.

    y = clamp((x − mean)/√(variance + eps) · weight + bias, low, high)

Guided training of pretrained networks keeps their statistics, and torch has no fast way back through BatchNorm then:
in a profile of MobileNetV2 norms and ReLU6 took two thirds of an iteration. Here the forward pass reads x and writes y,
the backward pass reads x and dy and writes dx; where that is differentiated, another pass reads x, dy and what comes
back to dx, and writes what goes to dy. `quicken` lets the layers of a network that is already there do so. Sums
are taken in single precision and in a fixed order, so that the same input gives the same bits.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor, nn

from ipg.models.swapping import Swapped, swap

try:
    import triton

    from ipg.models import frozen_norm_kernels as kernels
except ImportError:  # without triton, which comes with torch where there may be a GPU
    kernels = None  # type: ignore[assignment]

__all__ = ["SWITCH", "frozen_norm", "quicken"]

ENTRIES = 4096
"""Positions times channels that a block of threads takes at a time."""
BLOCKS = 512
"""Of threads that sums over all positions are left to, about."""
SPATIAL = torch.channels_last
SWITCH = "IPG_KERNELS"
"""Set to 0 in the environment, networks run as written."""


def frozen_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    eps: float = 1e-5,
    low: float = -math.inf,
    high: float = math.inf,
) -> Tensor:
    """BatchNorm by `mean` and `variance`, held between `low` and `high`, computed in single precision.

    Args:
        x: activations (B, C, H, W).
        weight: (C,), in single precision like those that follow.
        bias: (C,).
        mean: (C,), which gets no gradient.
        variance: (C,), neither.
        eps: added to the variance.
        low: 0 for ReLU.
        high: 6 for ReLU6.
    """
    y: Tensor = _fused(x, weight, bias, mean, variance, eps, low, high)
    return y


@torch.library.custom_op("ipg::frozen_norm", mutates_args=())
def _fused(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, low: float, high: float
) -> Tensor:
    x = x.contiguous(memory_format=SPATIAL)
    y = torch.empty_like(x)
    positions, channels = _size(x)
    span, block = _tile(channels)
    kernels.forward_kernel[(-(-positions // span), -(-channels // block))](
        x, weight, bias, mean, variance, y, positions, channels, eps, low, high, span=span, block=block
    )
    return y


@torch.library.custom_op("ipg::frozen_norm_backward", mutates_args=())
def _fused_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
    eps: float, low: float, high: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of x, and the parts of those of weight and bias, (parts, 2, C)."""
    x, dy = x.contiguous(memory_format=SPATIAL), dy.contiguous(memory_format=SPATIAL)
    dx, parts = torch.empty_like(x), _room_for_parts(x, 2)
    positions, channels = _size(x)
    span, block = _tile(channels)
    kernels.backward_kernel[(len(parts), -(-channels // block))](
        dy, x, weight, bias, mean, variance, dx, parts, positions, channels, eps, low, high,
        span=span, block=block, num_warps=8,
    )  # fmt: skip
    return dx, parts


@torch.library.custom_op("ipg::frozen_norm_second_backward", mutates_args=())
def _fused_second_backward(
    ddx: Tensor, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
    eps: float, low: float, high: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What a gradient of dx gives back to dy, and the parts of what it gives to weight, (parts, 1, C)."""
    x, dy, ddx = (each.contiguous(memory_format=SPATIAL) for each in (x, dy, ddx))
    ddy, parts = torch.empty_like(dy), _room_for_parts(x, 1)
    positions, channels = _size(x)
    span, block = _tile(channels)
    kernels.second_backward_kernel[(len(parts), -(-channels // block))](
        ddx, dy, x, weight, bias, mean, variance, ddy, parts, positions, channels, eps, low, high,
        span=span, block=block, num_warps=8,
    )  # fmt: skip
    return ddy, parts


@_fused.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, low: float, high: float
) -> Tensor:
    return torch.empty_like(x, memory_format=SPATIAL)


@_fused_backward.register_fake
def _(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
    eps: float, low: float, high: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x, memory_format=SPATIAL), _room_for_parts(x, 2)


@_fused_second_backward.register_fake
def _(
    ddx: Tensor, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
    eps: float, low: float, high: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(dy, memory_format=SPATIAL), _room_for_parts(x, 1)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.eps, ctx.low, ctx.high = inputs
    ctx.save_for_backward(*tensors)


def _keep_twice(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _keep(ctx, inputs, output)
    ctx.set_materialize_grads(False)  # to know which of the two gradients are asked for


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dx, parts = _fused_backward(dy, *ctx.saved_tensors, ctx.eps, ctx.low, ctx.high)
    dweight, dbias = parts.sum(0).unbind()
    return dx, dweight, dbias, *(None,) * 5  # of the statistics and the shape


def _differentiate_twice(ctx: Any, ddx: Tensor | None, dparts: Tensor | None) -> tuple[Tensor | None, ...]:
    shape: Any = (ctx.eps, ctx.low, ctx.high)
    none = (None,) * 5
    if ddx is None or dparts is not None or torch.is_grad_enabled():
        return *_written_second_backward(ddx, dparts, *ctx.saved_tensors, *shape), *none
    ddy, parts = _fused_second_backward(ddx, *ctx.saved_tensors, *shape)
    return ddy, None, parts.sum((0, 1)), None, *none  # x and bias decide where dx is 0, and nothing else


def _written_second_backward(
    ddx: Tensor | None, dparts: Tensor | None, dy: Tensor, x: Tensor,
    weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, low: float, high: float,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    """By the operations of torch what gradients of dx, weight and bias give back to dy, x and weight.

    For derivatives that are seldom asked for: of the gradients of weight and bias, and third ones.
    """
    inverse = (variance + eps).rsqrt()[:, None, None]
    wide, gain = x.float() - mean[:, None, None], weight[:, None, None] * inverse
    said = wide * gain + bias[:, None, None]
    inside = (said > low) & (said < high)
    slope = torch.where(inside, dy.float(), 0)
    above = torch.zeros_like(slope) if ddx is None else ddx.float()
    dweight, dbias = (0, 0) if dparts is None else dparts[0][..., None, None].unbind()  # the same in every part
    ddy = torch.where(inside, above * gain + dweight * wide * inverse + dbias, 0)
    return ddy.to(dy.dtype), (slope * dweight * inverse).to(x.dtype), (slope * above * inverse).sum((0, 2, 3)), None


_fused.register_autograd(_differentiate, setup_context=_keep)
_fused_backward.register_autograd(_differentiate_twice, setup_context=_keep_twice)


def _size(x: Tensor) -> tuple[int, int]:
    """Positions of all images, and channels."""
    return x.shape[0] * x.shape[2] * x.shape[3], x.shape[1]


def _tile(channels: int) -> tuple[int, int]:
    """How many positions and how many channels a block of threads takes: few threads without a channel of their own."""
    block = min((32, 64, 128), key=lambda width: (-(-channels // width) * width, -width))
    block = min(block, 1 << (channels - 1).bit_length())
    return max(1, ENTRIES // block), block


def _room_for_parts(x: Tensor, sums: int) -> Tensor:
    """Room for what each part of the positions adds to some sums over all positions, (parts, sums, C)."""
    positions, channels = _size(x)
    span, block = _tile(channels)
    parts = max(1, min(-(-positions // span), BLOCKS // -(-channels // block)))
    return x.new_empty((parts, sums, channels), dtype=torch.float32)


# -- in a network ------------------------------------------------------------------------------------------------------


def quicken(model: nn.Module) -> None:
    """Let the BatchNorm layers of `model` run so while they are in eval mode, on a GPU, in the layout channels last.

    Not where triton is missing, nor with `IPG_KERNELS=0`.
    """
    if kernels is None or os.environ.get(SWITCH) == "0":
        return
    for module in model.modules():
        if _is_known(module):
            swap(module, Quick)


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    if kind is not nn.BatchNorm2d and (kind.__name__, kind.__module__.partition(".")[0]) != ("BatchNormAct2d", "timm"):
        return False
    return bool(module.affine and module.track_running_stats) and _bounds(module) is not None


def _bounds(module: nn.Module) -> tuple[float, float] | None:
    """Between which the layers that timm puts into its BatchNorm hold what it gives; None where they do more."""
    drop, act = (getattr(module, name, nn.Identity()) for name in ("drop", "act"))
    if not isinstance(drop, nn.Identity) or not isinstance(act, nn.Identity | nn.ReLU | nn.ReLU6):
        return None
    if isinstance(act, nn.Identity):
        return -math.inf, math.inf
    return 0.0, 6.0 if isinstance(act, nn.ReLU6) else math.inf


class Quick(Swapped):
    """BatchNorm by the kernels where they can be used."""

    def forward(self, x: Tensor) -> Tensor:
        """What the layer makes of `x` (B, C, H, W)."""
        layer: Any = self
        if layer.training or layer.weight.dtype != torch.float32 or not _fits(x):
            return super().forward(x)  # type: ignore[no-any-return]
        low, high = _bounds(layer) or (-math.inf, math.inf)
        own = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
        return frozen_norm(x, *own, eps=layer.eps, low=low, high=high)


def _fits(x: Tensor) -> bool:
    """Whether the kernels take `x` as it lies."""
    placed = x.is_cuda or triton.knobs.runtime.interpret
    return placed and x.ndim == 4 and x.dtype != torch.float64 and x.is_contiguous(memory_format=SPATIAL)
