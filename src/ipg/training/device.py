"""The device a run uses, and the precision it computes in."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ipg.config import CHOICES, RunConfig

__all__ = [
    "autocast_dtype",
    "keep_freed_memory",
    "numerics",
    "own_randomness",
    "random_state",
    "resolve_device",
    "resolve_precision",
    "seed_generators",
    "set_random_state",
    "usual_defaults",
]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""As malloc.h has them."""
_USUAL = {_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 64 << 20}
"""What glibc's own settings, which rise with the blocks that are freed, come to where those are large."""


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one. ValueError where there is none of that name."""
    if name not in CHOICES["device"]:
        raise ValueError(f"there is no device {name!r}; expected one of {', '.join(CHOICES['device'])}")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available[name]:
        raise ValueError(f"device {name!r} is asked for and torch sees none here; use --device cpu")
    return torch.device(name)


def resolve_precision(name: str, device: torch.device) -> str:
    """The precision of that name; `auto` is bf16 on GPUs that have it and fp32 elsewhere."""
    if name != "auto":
        return name
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


@contextmanager
def usual_defaults() -> Iterator[None]:
    """New tensors are in single precision and on the CPU, whatever the caller's defaults are, which come back after."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def autocast_dtype(config: RunConfig) -> torch.dtype | None:
    """The dtype of autocast, None where it is off."""
    precision = config.precision
    if precision == "auto":
        precision = resolve_precision(precision, resolve_device(config.device))
    return torch.bfloat16 if precision == "bf16" else None


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Deterministic runs need it. torch looks once, at the first product on a GPU of whatever run.

LONG = 2000
"""Iterations from which it pays to try all kernels of a convolution."""


@contextmanager
def numerics(config: RunConfig, device: torch.device, *, iterations: int | None = None) -> Iterator[None]:
    """Set the precision of fp32 products, the choice of kernels and the use of freed memory for a run, and set them
    back afterwards.

    Trying all kernels of every convolution takes longer than a run of few `iterations`, which takes those that cuDNN
    thinks best.
    """
    if device.type != "cuda":
        with keep_freed_memory() if device.type == "cpu" else nullcontext():
            yield
        return
    switches = _tf32_switches()
    before = [getattr(place, name) for place, name, _ in switches]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        for place, name, values in switches:
            setattr(place, name, values[resolve_precision(config.precision, device) != "fp32"])
        torch.use_deterministic_algorithms(config.deterministic)
        short = iterations is not None and iterations < LONG
        torch.backends.cudnn.benchmark = not config.deterministic and not short
        yield
    finally:
        for (place, name, _), value in zip(switches, before, strict=True):
            setattr(place, name, value)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


_keepers = 0
_keepers_lock = threading.Lock()


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Inside, the C library keeps what this process frees for what it asks for next.

    Otherwise every large activation is given back to the system and comes anew, page by page and zeroed: with
    photographs that is close to half of an iteration. Only glibc is told, and only where its `MALLOC_…` settings and
    tunables are left alone. When the last of those inside leaves, what is free is given back.
    """
    library = _glibc()
    if library is not None:
        _count_keepers(library, 1)
    try:
        yield
    finally:
        if library is not None:
            _count_keepers(library, -1)


def _count_keepers(library: ctypes.CDLL, change: int) -> None:
    """Tell `library` as the first comes and as the last goes: runs may lie inside others, or beside them in threads."""
    global _keepers
    with _keepers_lock:
        before, _keepers = _keepers, _keepers + change
        if not before:
            library.mallopt(_M_MMAP_MAX, 0)
            library.mallopt(_M_TRIM_THRESHOLD, -1)  # nothing is given back
        elif not _keepers:
            for setting, value in _USUAL.items():
                library.mallopt(setting, value)
            library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, where it is glibc and the user has not told it anything."""
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def _tf32_switches() -> list[tuple[Any, str, tuple[Any, Any]]]:
    """Where matrix products and convolutions are told of TF32, and what they are told without and with it."""
    backends: Any = torch.backends
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        return [(place, "fp32_precision", ("ieee", "tf32")) for place in (backends.cuda.matmul, backends.cudnn.conv)]
    return [(place, "allow_tf32", (False, True)) for place in (backends.cuda.matmul, backends.cudnn)]  # torch 2.8


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the CPU's default generator and that of `device`, and no other."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the CPU's default generator and of that of `device`."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def set_random_state(states: dict[str, Tensor]) -> None:
    """Go on from what `random_state` returned."""
    for kind, state in states.items():
        if kind == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(kind).set_rng_state(state)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Leave the default generators afterwards as they were before."""
    before = random_state(device)
    try:
        yield
    finally:
        set_random_state(before)
