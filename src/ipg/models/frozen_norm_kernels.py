"""Triton's part of `ipg.models.frozen_norm`.

Activations lie as (positions, channels), the positions of all images one after the other. A block of threads takes some
channels, `span` positions at a time; sums over positions are kept apart by position within the span, added up at the
end, and written for each `part` of the positions, so that the same input gives the same bits.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["backward_kernel", "forward_kernel", "second_backward_kernel"]


@triton.jit
def _line(weight, bias, mean, variance, channel, real, eps):
    """The mean, the inverse spread, the gain and the level of some channels."""
    centre = tl.load(mean + channel, mask=real, other=0.0)
    inverse = tl.rsqrt(tl.load(variance + channel, mask=real, other=1.0) + eps)
    gain = tl.load(weight + channel, mask=real, other=0.0) * inverse
    return centre, inverse, gain, tl.load(bias + channel, mask=real, other=0.0) - centre * gain


@triton.jit
def forward_kernel(
    x, weight, bias, mean, variance, y, positions, channels, eps, low, high, span: tl.constexpr, block: tl.constexpr
):
    """Writes what BatchNorm makes of x with the statistics that it has, held between `low` and `high`."""
    channel = tl.program_id(1) * block + tl.arange(0, block)
    real = channel < channels
    _, _, gain, level = _line(weight, bias, mean, variance, channel, real, eps)
    position = tl.program_id(0).to(tl.int64) * span + tl.arange(0, span)
    here = (position < positions)[:, None] & real[None, :]
    at = position[:, None] * channels + channel[None, :]
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) * gain[None, :] + level[None, :]
    value = tl.where(value < low, low, tl.where(value > high, high, value))  # what is no number stays none
    tl.store(y + at, value.to(y.dtype.element_ty), mask=here)


@triton.jit
def _let_through(dy, x, at, here, gain, level, low, high):
    """Values of x, and what the bounds let through of a gradient dy: nothing where they hold the norm."""
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
    said = value * gain[None, :] + level[None, :]
    return value, tl.where((said <= low) | (said >= high), 0.0, slope)


@triton.jit
def backward_kernel(
    dy, x, weight, bias, mean, variance, dx, parts, positions, channels, eps, low, high,
    span: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Writes dx, and each part of the positions' share in the gradients of weight and bias, (parts, 2, channels)."""
    part = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    real = channel < channels
    centre, inverse, gain, level = _line(weight, bias, mean, variance, channel, real, eps)
    along = tl.zeros((span, block), tl.float32)
    total = tl.zeros((span, block), tl.float32)
    for start in range(part * span, positions, tl.num_programs(0) * span):
        position = start + tl.arange(0, span)
        here = (position < positions)[:, None] & real[None, :]
        at = position[:, None] * channels + channel[None, :]
        value, slope = _let_through(dy, x, at, here, gain, level, low, high)
        tl.store(dx + at, (slope * gain[None, :]).to(dx.dtype.element_ty), mask=here)
        along += slope * (value - centre[None, :])
        total += slope
    own = parts + part * 2 * channels + channel
    tl.store(own, tl.sum(along, 0) * inverse, mask=real)
    tl.store(own + channels, tl.sum(total, 0), mask=real)


@triton.jit
def second_backward_kernel(
    ddx, dy, x, weight, bias, mean, variance, ddy, parts, positions, channels, eps, low, high,
    span: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Writes what a gradient of dx gives back to dy, and parts of what it gives to weight, (parts, 1, channels)."""
    part = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    real = channel < channels
    _, inverse, gain, level = _line(weight, bias, mean, variance, channel, real, eps)
    along = tl.zeros((span, block), tl.float32)
    for start in range(part * span, positions, tl.num_programs(0) * span):
        position = start + tl.arange(0, span)
        here = (position < positions)[:, None] & real[None, :]
        at = position[:, None] * channels + channel[None, :]
        _value, slope = _let_through(ddx, x, at, here, gain, level, low, high)
        tl.store(ddy + at, (slope * gain[None, :]).to(ddy.dtype.element_ty), mask=here)
        along += slope * tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
    tl.store(parts + part * channels + channel, tl.sum(along, 0) * inverse, mask=real)
