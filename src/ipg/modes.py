"""Which layers are in train mode, and when. This file needs torch alone.

While pairs run, dropout and its kin are off; where it is asked for, BatchNorm is in eval mode throughout. What is said
of BatchNorm here is meant of InstanceNorm, too, which may track statistics as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Modes", "is_batch_norm", "unchanged"]


class Modes:
    """The modes of the layers of `model`; of several objects over one network the last one made decides.

    Args:
        model: any network.
        hold: keep its BatchNorm layers in eval mode, whatever `model.train()` says, until `release` or until nobody
            has this object any more. Copies of the network are not held.
    """

    def __init__(self, model: nn.Module, *, hold: bool) -> None:
        self._model = model
        self._holds = hold
        self._comparing = False
        for layer in self._batch_norms():
            _let_go(layer)
        self.hold()

    def _batch_norms(self) -> list[nn.Module]:
        return [module for module in self._model.modules() if is_batch_norm(module)]

    def hold(self) -> None:
        """Put BatchNorm in eval mode and keep it there, if so asked; also after somebody has set `training` itself."""
        if not self._holds:
            return
        for layer in self._batch_norms():
            kept = layer.__dict__.get("train")
            if not isinstance(kept, _StayInEval) or kept.holder() is None:
                _let_go(layer)
                kept = layer.__dict__["train"] = _StayInEval(layer, self)
            if layer.training:
                kept(mode=True)

    def release(self) -> None:
        """Let BatchNorm follow `model.train()` again, what that said last included."""
        self._holds = False
        for layer in self._batch_norms():
            kept = layer.__dict__.get("train")
            if isinstance(kept, _StayInEval) and kept.holder() is self:
                _let_go(layer)

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Dropout and its kin off, so that identical members stay identical; the rest as it is; restored after.

        A graph made inside needs it until its backward pass is over: checkpointed layers run again there.
        """
        if self._comparing:
            yield
            return
        self._comparing = True
        try:
            with unchanged(self._model) as modules:
                others = [module for module in modules if not is_batch_norm(module) and not _needs_training(module)]
                _set(others, [False] * len(others))
                yield
        finally:
            self._comparing = False


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a layer may normalise by statistics that it keeps: those of its input in train mode, its own in eval."""
    return isinstance(module, _NormBase)


def _needs_training(module: nn.Module) -> bool:
    """Whether a layer is recurrent, without dropout: cuDNN finds gradients of these in train mode alone."""
    return isinstance(module, nn.RNNBase) and not module.dropout


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Gives the modules; afterwards the mode of each is as before, and so is what held layers were asked for last.

    Modules with a `train` of their own are told that they train again: some keep what they have computed in eval mode
    until they hear of it, as attention does in several networks of timm.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    held = [module.__dict__.get("train") for module in modules]
    asked = [(kept, kept.asked) for kept in held if isinstance(kept, _StayInEval)]
    try:
        yield modules
    finally:
        for module, mode in zip(modules, modes, strict=True):
            if mode and type(module).train not in _PLAIN:
                module.train()
        _set(modules, modes)
        for kept, mode in asked:
            kept.asked = mode


_PLAIN = (nn.Module.train, DistributedDataParallel.train)
"""Those that set modes and do nothing else."""


class _StayInEval:
    """Stands in the place of a layer's own `train`, so that it costs a forward pass nothing and no compiler sees it."""

    def __init__(self, layer: nn.Module, holder: Modes) -> None:
        self._layer = layer
        self.holder = weakref.ref(holder)
        self.asked = layer.training

    def __call__(self, mode: bool = True) -> nn.Module:
        """Eval mode, whatever `mode` says, while the holder is there."""
        self.asked = mode
        return type(self._layer).train(self._layer, mode and self.holder() is None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[nn.Module, str]]:
        """Copies of the layer, pickled ones too, have its own `train`."""
        return getattr, (self._layer, "train")


def _let_go(layer: nn.Module) -> None:
    """Give `layer` its own `train` back, and the mode that it was asked for last."""
    kept = layer.__dict__.get("train")
    if isinstance(kept, _StayInEval):
        del layer.__dict__["train"]
        layer.training = kept.asked


def _set(modules: list[nn.Module], modes: list[bool]) -> None:
    """Assign what differs: it costs many times what reading does, and ten times as much where `nn.Module` looks."""
    for module, mode in zip(modules, modes, strict=True):
        if module.training != mode:
            plain = type(module).__setattr__ is nn.Module.__setattr__
            (object.__setattr__ if plain else setattr)(module, "training", mode)
