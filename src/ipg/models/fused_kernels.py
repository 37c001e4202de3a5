"""Triton's part of `ipg.models.fused`: a block of threads for some groups of channels of one image.

Activations lie as (images, positions, channels). A block goes over its channels `span` positions at a time, twice: once
to sum up, and once, when they are still in the cache, to write. What it sums up it keeps apart by position within the
span, and adds up at the end.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["backward_kernel", "forward_kernel"]


@triton.jit
def _by_group(value, groups: tl.constexpr, width: tl.constexpr):
    """The sum over a group, at each of its channels, (groups·width,)."""
    total = tl.sum(tl.reshape(value, (groups, width)), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (groups, width)), (groups * width,))


@triton.jit
def _rectified(x, at, here, bias):
    """ReLU(x + bias) in single precision, 0 outside of the image."""
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) + bias[None, :]
    return tl.where(here, tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0)


@triton.jit
def forward_kernel(
    x, bias, weight, shift, y, mean, inverse, positions, channels, eps,
    pooled: tl.constexpr, span: tl.constexpr, groups: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Writes y, or its mean over positions, and for every image and channel the mean and the inverse spread of its
    group.
    """
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * groups * width + tl.arange(0, groups * width)
    own = image * channels + channel
    bias_of = tl.load(bias + channel)
    total = tl.zeros((span, groups * width), tl.float32)
    squares = tl.zeros((span, groups * width), tl.float32)
    for start in range(0, positions, span):
        position = start + tl.arange(0, span)
        here = (position < positions)[:, None]
        at = (image * positions + position)[:, None] * channels + channel[None, :]
        value = _rectified(x, at, here, bias_of)
        total += value
        squares += value * value
    sums = tl.sum(total, 0)
    within = tl.sum(squares, 0) - sums * sums / positions  # of each channel about its own mean
    centre = _by_group(sums, groups, width) / (positions * width)
    off = sums / positions - centre
    spread = _by_group(
        tl.maximum(within, 0.0, propagate_nan=tl.PropagateNan.ALL) + positions * off * off, groups, width
    )
    scale = tl.rsqrt(spread / (positions * width) + eps)
    tl.store(mean + own, centre)
    tl.store(inverse + own, scale)
    gain = scale * tl.load(weight + channel)
    level = tl.load(shift + channel) - centre * gain
    if pooled:
        tl.store(y + own, (sums / positions * gain + level).to(y.dtype.element_ty))
    else:
        for start in range(0, positions, span):
            position = start + tl.arange(0, span)
            here = (position < positions)[:, None]
            at = (image * positions + position)[:, None] * channels + channel[None, :]
            out = _rectified(x, at, here, bias_of) * gain[None, :] + level[None, :]
            tl.store(y + at, out.to(y.dtype.element_ty), mask=here)


@triton.jit
def _slope(dy, at, own, here, positions, pooled: tl.constexpr):
    """The gradient of y, in single precision, 0 outside of the image."""
    if pooled:
        slope = tl.where(here, (tl.load(dy + own).to(tl.float32) / positions)[None, :], 0.0)
    else:
        slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
    return slope


@triton.jit
def backward_kernel(
    dy, x, bias, weight, mean, inverse, dx, parts, positions, channels,
    pooled: tl.constexpr, span: tl.constexpr, groups: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Writes dx, and each image's part in the gradients of weight, shift and bias, (images, 3, channels)."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * groups * width + tl.arange(0, groups * width)
    own = image * channels + channel
    bias_of, centre, scale = tl.load(bias + channel), tl.load(mean + own), tl.load(inverse + own)
    along = tl.zeros((span, groups * width), tl.float32)
    level = tl.zeros((span, groups * width), tl.float32)
    for start in range(0, positions, span):
        position = start + tl.arange(0, span)
        here = (position < positions)[:, None]
        at = (image * positions + position)[:, None] * channels + channel[None, :]
        slope = _slope(dy, at, own, here, positions, pooled)
        along += slope * (_rectified(x, at, here, bias_of) - centre[None, :])
        level += slope
    of_weight, of_shift = tl.sum(along, 0) * scale, tl.sum(level, 0)
    here_parts = parts + image * 3 * channels + channel
    tl.store(here_parts, of_weight)
    tl.store(here_parts + channels, of_shift)
    gain = tl.load(weight + channel)
    count = positions * width
    mean_along = _by_group(of_weight * gain, groups, width) / count * scale
    mean_level = _by_group(of_shift * gain, groups, width) / count
    of_bias = tl.zeros((span, groups * width), tl.float32)
    for start in range(0, positions, span):
        position = start + tl.arange(0, span)
        here = (position < positions)[:, None]
        at = (image * positions + position)[:, None] * channels + channel[None, :]
        value = _rectified(x, at, here, bias_of)
        slope = _slope(dy, at, own, here, positions, pooled) * gain[None, :] - mean_level[None, :]
        back = (slope - (value - centre[None, :]) * mean_along[None, :]) * scale[None, :]
        back = tl.where(here & (value > 0.0), back, 0.0)
        tl.store(dx + at, back.to(dx.dtype.element_ty), mask=here)
        of_bias += back
    tl.store(here_parts + 2 * channels, tl.sum(of_bias, 0))
