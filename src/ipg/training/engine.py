"""How the iterations of a run are carried out: as written, as CUDA graphs, or over a compiled network.

A compiled network is on a GPU one that torch traces, inside CUDA graphs. On a CPU it is one of ours with kernels of its
own (`ipg.models.native`): what torch's compiler makes of it there is slower than it is as written, or hardly faster.

On a GPU that has it the network computes in bf16 with its images and weights in the layout *channels last*, which its
matrix units read directly. None of this changes what is computed; docs/speed.md says by how much it may differ.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import nn

from ipg.config import RunConfig
from ipg.models import ConvNet
from ipg.models.frozen_norm import quicken
from ipg.models.native import NativeConvNet, obstacle
from ipg.training.device import resolve_precision

__all__ = ["VARIANTS", "compile_model", "compiling", "lay_out", "resolve", "traces"]

VARIANTS = 64
"""How many shapes of one function may be compiled; torch's own limit of 8 is soon met by a study."""
TALKATIVE = ("torch._dynamo.variables.ctx_manager", "torch._dynamo.variables.torch")
"""Loggers of torch's that tell what users can do nothing about."""
AHEAD = "force_non_lazy_backward_lowering"
"""What torch calls it to compile the way back together with the forward pass; versions before 2.11 may not have it."""


def resolve(config: RunConfig, device: torch.device, *, processes: int) -> RunConfig:
    """`config` with what `auto` stands for: the precision and the engine on `device`, and what suits the network."""
    graphs = device.type == "cuda" and processes == 1
    engine = config.engine
    if engine == "auto":
        engine = "captured" if graphs else "eager"
    elif engine != "eager" and not graphs and not (engine == "compiled" and device.type == "cpu" and processes == 1):
        where = f"{processes} processes" if processes > 1 else f"device {device.type!r}"
        single = "a single CUDA GPU" + (", or a CPU in one process" if engine == "compiled" else "")
        raise ValueError(f"engine={engine!r} is for {single}, not for {where}; leave it out or use eager")
    precision = resolve_precision(config.precision, device)
    if engine == "compiled" and graphs and not _has_triton():
        warnings.warn("the network cannot be compiled here, since triton is not installed: captured only", stacklevel=2)
        engine = "captured"
    elif engine == "compiled" and not graphs and (why := obstacle(half=precision == "bf16")) is not None:
        warnings.warn(f"the network cannot be compiled here, since {why}: it runs as written", stacklevel=2)
        engine = "eager"
    return config.suited().with_changes(precision=precision, engine=engine)


def traces(config: RunConfig, device: torch.device) -> bool:
    """Whether torch compiles the network, the losses and the optimizer of a run on `device`."""
    return config.engine == "compiled" and device.type == "cuda"


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


def compile_model(model: nn.Module, config: RunConfig, device: torch.device) -> nn.Module:
    """`model` compiled for `device`, if that is the engine; otherwise as it is."""
    if traces(config, device):
        return cast(nn.Module, torch.compile(model, dynamic=False))
    if config.engine == "compiled" and NativeConvNet.suits(model):
        return NativeConvNet(cast(ConvNet, model))
    if config.engine == "compiled":
        warnings.warn("on a CPU only mnist_cnn and small_cnn are compiled: this network runs as written", stacklevel=2)
    return model


@contextmanager
def compiling(*, strictly: bool = False) -> Iterator[None]:
    """Inside, more shapes of one function may be compiled than torch allows by itself.

    And what was compiled for a network is not taken for another of its kind that has a hook, which it would leave out.
    What cannot be compiled, which shows at its first call, runs as written and is captured with the rest; the first of
    it is announced. `strictly` it is an error, as where time is measured. The way back is compiled at that call, too:
    torch would do so at the first backward pass, where it is too late to run the forward pass as written.
    """
    import torch._dynamo
    import torch._functorch.config as functorch

    ahead = functorch.patch({AHEAD: True}) if hasattr(functorch, AHEAD) else nullcontext()
    filters: dict[str, logging.Filter | Callable[[logging.LogRecord], bool]] = {
        "torch._dynamo.convert_frame": _Announced(),
        **dict.fromkeys(TALKATIVE, _matters),
    }
    for name, told in filters.items():
        logging.getLogger(name).addFilter(told)
    try:
        with (
            ahead,
            warnings.catch_warnings(),
            torch._dynamo.config.patch(
                recompile_limit=VARIANTS, skip_nnmodule_hook_guards=False, suppress_errors=not strictly
            ),
        ):
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # on how a kernel is put together
            yield
    finally:
        for name, told in filters.items():
            logging.getLogger(name).removeFilter(told)


def _matters(record: logging.LogRecord) -> bool:
    """Whether a record of torch's tells users anything: not that what an optimizer tells profilers is left out."""
    return not str(record.msg).startswith("Profiler ")


class _Announced(logging.Filter):
    """One notice of a line in the place of the pages that torch logs for each function it could not compile."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record of torch's is to be logged as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.levelno < logging.WARNING:
            return True
        if not self._said:
            self._said = True
            error = getattr(error, "inner_exception", None) or error
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()
            warnings.warn(
                f"the network, or a part of its step, cannot be compiled and runs as written: {reason}", stacklevel=2
            )
        return False


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())
