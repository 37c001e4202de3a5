"""One network made into another, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

from torch import nn

__all__ = ["Rules", "convert", "kept"]

Rules = Mapping[type[nn.Module], Callable[[nn.Module], nn.Module]]
"""What becomes of a layer, by its exact type."""


def kept(layer: nn.Module) -> nn.Module:
    """The layer as it is."""
    return layer


def convert(model: nn.Module, rules: Rules, *, name: str) -> None:
    """Replace every layer inside `model` by what the rule for its type makes of it, in place.

    Raises:
        ValueError: there is a layer without a rule; `name` is what the network is called.
    """
    for child_name, child in list(model.named_children()):
        if (rule := rules.get(type(child))) is not None:
            setattr(model, child_name, rule(child))
        elif next(child.children(), None) is None or _has_own(child):
            known = ", ".join(kind.__name__ for kind in rules)
            raise ValueError(
                f"{name} cannot be made: it has a layer {type(child).__name__} ({child_name}), and only {known} can be "
                f"converted; take a ResNet or a small network"
            )
        else:
            convert(child, rules, name=name)


def _has_own(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers that are not those of a layer inside it."""
    return next(chain(module.parameters(recurse=False), module.buffers(recurse=False)), None) is not None
