"""The blocks of a network: what its weights are gathered by where processes share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ipg.evaluation.groups import evaluating
from ipg.rationale import HeadNotFoundError, find_head

__all__ = ["find_blocks", "find_groups"]

STAGE = 1 / 8
"""Share of all parameters up to which a stage of several blocks is one block."""
SMALL = 1 / 256
"""Share of all parameters below which a block is not worth an exchange of its own."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_MULTIPLY = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention)
"""Layers whose weights autocast rounds to bf16, all of them."""


def find_groups(model: nn.Module, image: Tensor, *, bf16: bool) -> list[list[nn.Module]]:
    """The modules of `model` that are gathered together and let go of together, in groups, as they run.

    A group is a block or, for a network that computes in bf16, those of its layers whose weights that rounds: weights
    of norms and the like are not rounded, and stay with the rest. So do those of a module that does not run once as
    `image` passes, since another reads them.

    Args:
        model: a plain network.
        image: one image (1, C, H, W) in [0, 1].
        bf16: whether the network computes in bf16.
    """
    blocks = [[block] for block in find_blocks(model)]
    if bf16:
        blocks = [_multiplying(block) for (block,) in blocks]
    runs = _runs(model, image, bf16=bf16)
    groups = [[module for module in runs if runs[module] == 1 and module in block] for block in blocks]
    return [group for group in groups if group]


def _multiplying(block: nn.Module) -> list[nn.Module]:
    """The layers of a block whose weights, as they are, enter products alone."""
    inside = {
        inner for module in block.modules() if isinstance(module, nn.MultiheadAttention) for inner in module.children()
    }
    forwards = {kind.forward for kind in _MULTIPLY}
    return [module for module in block.modules() if module not in inside and type(module).forward in forwards]


def _runs(model: nn.Module, image: Tensor, *, bf16: bool) -> Counter[nn.Module]:
    """How often each module runs as `image` passes `model`."""
    runs: Counter[nn.Module] = Counter()
    place = next(model.parameters()).device
    hooks = [module.register_forward_pre_hook(lambda module, _: runs.update([module])) for module in model.modules()]
    try:
        with evaluating(model), torch.autocast(place.type, dtype=torch.bfloat16, enabled=bf16):
            model(image.to(place))
    finally:
        for hook in hooks:
            hook.remove()
    return runs


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks whose weights are gathered together: the layers of a transformer, the residual blocks of a ResNet, ….

    They are modules of several layers that come more than once beside each other; of a stage of such blocks the blocks,
    where it is large. What is small, shares weights with others or holds the head stays with the whole.
    """
    try:
        head: nn.Module | None = find_head(model)
    except HeadNotFoundError:  # of methods that look for none
        head = None
    places = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    total = max(1, _size(model))

    def own(block: nn.Module) -> bool:
        inside = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
        return all(places[parameter] == count for parameter, count in inside.items())

    def look(module: nn.Module, *, stage: bool = False) -> Iterator[nn.Module]:
        kinds = Counter(type(child) for child in module.children())
        for child in module.children():
            if child is head or not _size(child):
                continue
            recurs = stage or type(module) in _CONTAINERS or kinds[type(child)] > 1
            holds_head = head is not None and any(inner is head for inner in child.modules())
            if holds_head or not recurs or not _is_composed(child):
                yield from look(child)
            elif _size(child) > STAGE * total and _is_stage(child):
                yield from look(child, stage=True)
            else:
                yield child

    return [block for block in look(model) if _size(block) >= SMALL * total and own(block)]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _is_composed(module: nn.Module) -> bool:
    """Whether it is more than one layer, and more than a list of them."""
    return type(module) not in _CONTAINERS and next(module.children(), None) is not None


def _is_stage(module: nn.Module) -> bool:
    """Whether most of it are modules of several layers of one kind, beside each other."""
    for inner in module.modules():
        kinds: dict[type, list[int]] = {}
        for child in inner.children():
            if _is_composed(child):
                kinds.setdefault(type(child), []).append(_size(child))
        if any(len(sizes) > 1 and sum(sizes) > _size(module) / 2 for sizes in kinds.values()):
            return True
    return False
