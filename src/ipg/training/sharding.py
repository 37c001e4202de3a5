"""A network in shards (FSDP2): of every weight, gradient and optimizer state each process holds a part.

The weights of a block are gathered just before it runs, forward and backward, and let go of after it; those of the
rest, the head among them, stay from the forward pass to the end of the backward pass. What is written to files is
whole, so a run may go on with any number of processes, in shards or not.

All functions here that are given a sharded network are for all processes at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ipg.collectives import Peers, in_shards
from ipg.config import RunConfig
from ipg.methods import method_class
from ipg.training.blocks import find_groups

__all__ = [
    "at_rest",
    "check_shards",
    "forget_processes",
    "is_sharded",
    "laid_like",
    "optimizer_laid",
    "outlined",
    "sharded",
    "whole",
]

_meshes: list[Any] = []
"""Those that networks of this process were sharded on."""


def sharded(model: nn.Module, image: Tensor, device: torch.device, *, bf16: bool) -> nn.Module:
    """`model` in shards over all processes, on `device`, changed in place; its weights are those of the first process.

    Args:
        model: a plain network, on the CPU or on `device`: it moves there block by block.
        image: one image (1, C, H, W) in [0, 1] that is passed through, to see which of its blocks run as such.
        device: of this process.
        bf16: whether the network computes in bf16. Weights that it rounds to bf16 in any case are then gathered in it;
            gradients are summed in float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    peers = Peers()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.copy_(peers.broadcast_(tensor.detach().to(device).contiguous()))
    mesh, policy = init_device_mesh(device.type, (peers.size,)), MixedPrecisionPolicy()
    _meshes.append(mesh)
    if bf16:
        policy = MixedPrecisionPolicy(  # what enters a layer is autocast's business
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    for group in find_groups(model, image, bf16=bf16):
        group[-1].register_forward_hook(_own_memory)
        fully_shard(group, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)  # not the head itself: its weight has to be there when it has run
    return model


def _own_memory(module: nn.Module, inputs: Any, output: Any) -> Any:
    """What leaves a group as tensors of their own: one that changes a view in place is lost to FSDP's backward pass."""
    del module, inputs
    return tree_map_only(Tensor, lambda part: part if part._base is None else part.clone(), output)


def check_shards(config: RunConfig, *, processes: int) -> None:
    """Refuse, before training, a method that cannot train a network in shards; warn where a process is alone."""
    if not config.shard:
        return
    if processes == 1:
        warnings.warn(
            "a single process has nobody to share a network with, and holds all of it: --shard is for processes that "
            "torchrun has started",
            stacklevel=3,
        )
    elif reason := method_class(config.method).whole:
        raise ValueError(f"method {config.method!r} cannot train a network in shards: {reason}; leave --shard out")


def forget_processes() -> None:
    """Let go of the process group of networks that were sharded, when it is destroyed.

    torch remembers meshes for good and, of late, their groups with them, whose threads abort a process at its end now
    and then.
    """
    for mesh in _meshes:
        getattr(mesh, "_pg_registry", {}).clear()
    _meshes.clear()


def is_sharded(model: nn.Module) -> bool:
    """Whether `model` is what `sharded` has made."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # takes a while to load
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def at_rest(model: nn.Module) -> None:
    """Let go of the weights that a forward pass without a backward pass has left gathered."""
    if is_sharded(model):
        model.reshard()  # type: ignore[operator]


# -- states, whole and in shards ---------------------------------------------------------------------------------------


def whole(state: Any, *, keep: bool = True) -> Any:
    """`state`, in any nesting of dicts and lists, with every tensor that lies in shards put together, on the CPU.

    All processes have to ask for it; where one does not `keep` it, None stands in the place of such a tensor.
    """
    if isinstance(state, dict):
        return {name: whole(value, keep=keep) for name, value in state.items()}
    if isinstance(state, list):
        return [whole(value, keep=keep) for value in state]
    if not in_shards(state):
        return state
    full = state.full_tensor().detach()
    return full.to("cpu", copy=True) if keep else None


def laid_like(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """`values`, which the first process has, as `targets` lie: in shards, or the same everywhere; see `outlined`."""
    if not any(map(in_shards, targets.values())):
        return values
    return {name: _laid(target, values[name]) for name, target in targets.items()}


def _laid(target: Any, value: Tensor) -> Tensor:
    """`value` as the first process has it, in shards where `target` is."""
    from torch.distributed.tensor import distribute_tensor

    here = torch.empty_like(value, device=target.device) if value.is_meta else value.to(target.device)
    if in_shards(target):
        return distribute_tensor(here, target.device_mesh, target.placements)
    return Peers().broadcast_(here.contiguous())


def optimizer_laid(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The `state` of an optimizer, which the first process has, its tensors in shards where its parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(map(in_shards, parameters)):
        return state

    def laid(parameter: Tensor, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return _laid(
            parameter if value.shape == parameter.shape else value.new_empty((), device=parameter.device), value
        )

    entries = {
        index: {name: laid(parameters[index], value) for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries}


def outlined(first: Callable[[Callable[[], Any]], Any], read: Callable[[], Any]) -> Any:
    """A checkpoint that the first process alone reads: the others are told all of it but weights and optimizer states.

    In the place of those they have tensors without values, for `laid_like` and `optimizer_laid`.
    """
    found: list[Any] = []

    def tell() -> Any:
        found.append(state := read())
        if state is None:
            return None
        progress = {**state["progress"], "kept": _outline(state["progress"]["kept"])}
        optimizer = {**state["optimizer"], "state": _outline(state["optimizer"]["state"])}
        return {**state, "progress": progress, "model": _outline(state["model"]), "optimizer": optimizer}

    told = first(tell)
    return found[0] if found else told


def _outline(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _outline(value) for name, value in state.items()}
    return state.to("meta") if isinstance(state, Tensor) else state
