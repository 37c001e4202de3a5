"""Weights of a file fitted to a network, name by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from torch import Tensor, nn

from ipg.models.head import head_name
from ipg.models.weights import Weights, some

__all__ = ["classes_in", "load_weights"]

Tensors = Mapping[str, Tensor]


def load_weights(
    model: nn.Module,
    weights: Weights,
    *,
    name: str,
    new_head: bool,
    convert: Callable[[dict[str, Tensor]], Tensors] | None = None,
) -> None:
    """Give `model` the tensors of `weights`, which have to fit by name and size.

    Args:
        model: a bare network, without normalisation.
        weights: from `read_weights`; wrappers that prefixed the names (`module.`, `model.`, …) do not matter.
        name: what to call the network in an error.
        new_head: leave the head as it is; whether `weights` have one does not matter then.
        convert: brings tensors of another layout to the network's own, tried where they do not fit as they are.
    """
    wanted = model.state_dict()
    head = f"{head_name(model)}." if new_head else None
    own = {key: wanted[key] for key in wanted if head is not None and key.startswith(head)}
    found = _bare(weights.tensors, wanted)
    tensors = {**found, **own}
    if _misfits(tensors, wanted) and convert is not None:
        with suppress(Exception):  # written for files of its own family, it may stumble over any other
            tensors = {**convert(found), **own}
    if problems := _misfits(tensors, wanted):
        raise ValueError(
            f"{weights.source} does not fit {name}: {'; '.join(problems)}. It is probably of another architecture; "
            f"name the one it was trained as."
        )
    model.load_state_dict(tensors, strict=False)  # only counters of BatchNorm may be missing


def classes_in(model: nn.Module, weights: Weights) -> int:
    """How many classes the head in `weights` has, for a network of the kind of `model`."""
    key = f"{head_name(model)}.weight"
    head = _bare(weights.tensors, model.state_dict()).get(key)
    if head is None:
        raise ValueError(
            f"{weights.source} has no classifier ({key}), so it tells no classes apart; train from it with "
            f"--weights (weights=)"
        )
    return len(head)


def _bare(tensors: Tensors, wanted: Tensors) -> dict[str, Tensor]:
    """`tensors` without the prefix that some wrapper gave their names: the one that makes most of them `wanted`."""
    ends = [name for name in wanted if name.endswith("weight")][:1] or list(wanted)[:1]
    prefixes = {name.removesuffix(end) for end in ends for name in tensors if f".{name}".endswith(f".{end}")}
    best = max(sorted(prefixes), key=lambda prefix: sum(prefix + name in tensors for name in wanted), default="")
    return {name.removeprefix(best): tensor for name, tensor in tensors.items() if name.startswith(best)}


def _misfits(tensors: Tensors, wanted: Tensors) -> list[str]:
    """What keeps `tensors` from being `wanted`, in words."""
    missing = [name for name in wanted if name not in tensors and not name.endswith("num_batches_tracked")]
    unknown = [name for name in tensors if name not in wanted]
    sizes = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    ]
    found = {"it lacks": missing, "it has besides": unknown, "sizes differ in": sizes}
    return [f"{what} {some(names)}" for what, names in found.items() if names]
