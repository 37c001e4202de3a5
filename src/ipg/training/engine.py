"""How the iterations of a run are carried out: as written, as CUDA graphs, or as CUDA graphs over a compiled network.

On a GPU that has it the network computes in bf16 with its images and weights in the layout *channels last*, which its
matrix units read directly. None of this changes what is computed; docs/speed.md says by how much it may differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn

from ipg.config import RunConfig
from ipg.models import ConvNet
from ipg.models.frozen_norm import quicken
from ipg.training.device import resolve_precision

__all__ = ["VARIANTS", "compile_model", "compiling", "lay_out", "resolve"]

VARIANTS = 64
"""How many shapes of one function may be compiled; torch's own limit of 8 is soon met by a study."""


def resolve(config: RunConfig, device: torch.device, *, processes: int) -> RunConfig:
    """`config` with what `auto` stands for: the precision and the engine on `device`, and what suits the network."""
    graphs = device.type == "cuda" and processes == 1
    engine = config.engine
    if engine == "auto":
        engine = "captured" if graphs else "eager"
    elif engine != "eager" and not graphs:
        where = f"{processes} processes" if processes > 1 else f"device {device.type!r}"
        raise ValueError(f"engine={engine!r} is for a single CUDA GPU, not for {where}; leave it out or use eager")
    if engine == "compiled" and not _has_triton():
        warnings.warn("the network cannot be compiled here, since triton is not installed: captured only", stacklevel=2)
        engine = "captured"
    return config.suited().with_changes(precision=resolve_precision(config.precision, device), engine=engine)


def lay_out(model: nn.Module, config: RunConfig, device: torch.device) -> nn.Module:
    """`model` in the layout that `device` computes convolutions fastest in, kept norms by a kernel for it, in place."""
    slow = any(isinstance(module, nn.GroupNorm) for module in model.modules())  # as written, in that layout
    slow = slow and not isinstance(model, ConvNet)  # which has a kernel for it
    if device.type == "cuda" and (config.engine == "compiled" or (config.precision == "bf16" and not slow)):
        model.to(memory_format=torch.channels_last)
        fuses = config.engine == "compiled"  # norms, by itself
        if config.batch_norm == "eval" and not fuses:
            quicken(model)
    return model


def compile_model(model: nn.Module, config: RunConfig) -> nn.Module:
    """`model` compiled, if that is the engine; otherwise as it is."""
    if config.engine != "compiled":
        return model
    return cast(nn.Module, torch.compile(model, dynamic=False))


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, more shapes of one function may be compiled than torch allows by itself.

    And what was compiled for a network is not taken for another of its kind that has a hook, which it would leave out.
    """
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=VARIANTS, skip_nnmodule_hook_guards=False):
        yield


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())
