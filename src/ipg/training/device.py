"""The device a run uses, and the precision it computes in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ipg.config import RunConfig

__all__ = ["autocast_dtype", "numerics", "resolve_device"]


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available[name]:
        raise ValueError(f"device {name!r} is asked for and torch sees none here; use --device cpu")
    return torch.device(name)


def autocast_dtype(config: RunConfig) -> torch.dtype | None:
    """The dtype of autocast, None where it is off."""
    return torch.bfloat16 if config.precision == "bf16" else None


@contextmanager
def numerics(config: RunConfig, device: torch.device) -> Iterator[None]:
    """Set the precision of fp32 products and the choice of kernels for a run, and set them back afterwards."""
    if device.type != "cuda":
        yield
        return
    wanted = "ieee" if config.precision == "fp32" else "tf32"
    places: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]
    before = [place.fp32_precision for place in places]
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        for place in places:
            place.fp32_precision = wanted
        torch.use_deterministic_algorithms(config.deterministic)
        torch.backends.cudnn.benchmark = not config.deterministic
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark
