"""Other ways to run layers of a network that is already there; its weights, their names and its copies stay."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Swapped", "swap", "swap_back"]


class Swapped(nn.Module):
    """Base of a class that stands before that of a layer and runs it otherwise; `super()` is the layer as it was.

    It goes along where the layer is copied or pickled.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        kind, plain = type(self).__bases__
        return _made, (kind, plain), self.__dict__


def swap(layer: nn.Module, kind: type[Swapped]) -> None:
    """Have `layer` run as `kind` says."""
    layer.__class__ = _joined(kind, type(layer))


def swap_back(model: nn.Module, kind: type[Swapped]) -> None:
    """Have the layers of `model` that run as `kind` says run as they did before."""
    for module in model.modules():
        if isinstance(module, kind):
            _, module.__class__ = type(module).__bases__


_JOINED: dict[tuple[type, type], type[nn.Module]] = {}


def _joined(kind: type[Swapped], plain: type[nn.Module]) -> type[nn.Module]:
    """The class of layers `plain` that run as `kind` says."""
    if (kind, plain) not in _JOINED:
        _JOINED[kind, plain] = type(f"{kind.__name__}{plain.__name__}", (kind, plain), {"__module__": __name__})
    return _JOINED[kind, plain]


def _made(kind: type[Swapped], plain: type[nn.Module]) -> nn.Module:
    """A layer without content, to be filled by who copies it."""
    made = _joined(kind, plain)
    return made.__new__(made)
