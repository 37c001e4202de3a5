"""What the processes that train one model together say to each other. This file needs torch alone.

N processes hold one model each, kept equal, or under FSDP2 a part of it; every batch is split among them. All of
them follow one convention, that of DistributedDataParallel and `fully_shard`: *the gradient of the whole batch is the
mean of the processes' gradients*. So a loss that is a sum over rows is written as N times this process's share of it.

A process that is alone exchanges nothing, and every function here leaves what it is given as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

if dist.is_available() and "RANK" in os.environ:
    # One process of several. Functions of this module take the group of the moment of their import for their default
    # and keep it for good. Loaded after init_process_group, as DistributedDataParallel does, they leave a group behind
    # whose threads abort the process at its end now and then. Not loaded otherwise, since it writes files.
    import torch.distributed.nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

__all__ = ["GlobalCrossEntropy", "Group", "Peers", "find_peers", "in_shards", "shard", "unreduced", "wrapped_in"]

Group: TypeAlias = "ProcessGroup | Literal['auto'] | None"
"""The processes that train one model: a process group, None for this process alone, or "auto": the group of the
model's own DistributedDataParallel or `fully_shard`, else all processes where torch.distributed is initialised."""


class Peers:
    """The processes of one training run, this one among them.

    Attributes:
        size: how many there are.
        index: which of them this one is.
        averages: whether somebody has to average the task gradient: true for a model that nothing wraps.
        sharded: whether the parameters are sharded (FSDP2), so that only a backward pass can make gradients.
    """

    def __init__(
        self, group: ProcessGroup | None = None, *, alone: bool = False, averages: bool = True, sharded: bool = False
    ) -> None:
        alone = alone or not _initialised()
        self.group = group
        self.size = 1 if alone else dist.get_world_size(group)
        self.index = 0 if alone else dist.get_rank(group)
        self.averages = averages and not sharded and self.size > 1
        self.sharded = sharded

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in their order, (N·n, …) from (n, …) each, with gradients.

        Its backward pass says nothing to anybody: since every process computes the same loss from the same rows, each
        has the gradient of its own rows already, and multiplies it by N for the mean that follows.
        """
        if self.size == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows, self)
        return gathered

    def mean_(self, tensors: Iterable[Tensor]) -> None:
        """Replace `tensors`, alike in number and shape everywhere, by their means over the processes.

        They travel as one flat tensor for each dtype among them.
        """
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors if self.size > 1 else ():
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for alike in by_dtype.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            dist.all_reduce(flat, group=self.group)
            flat /= self.size  # gloo has no mean of its own
            parts = flat.split([tensor.numel() for tensor in alike])  # type: ignore[no-untyped-call]
            torch._foreach_copy_(alike, [part.view(tensor.shape) for part, tensor in zip(parts, alike, strict=True)])

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of `tensor` over the processes, without gradients."""
        total = tensor.detach().clone()
        if self.size > 1:
            dist.all_reduce(total, group=self.group)
        return total

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """`tensor` as the first process has it, in place."""
        if self.size > 1:
            dist.broadcast(tensor, group=self.group, group_src=0)
        return tensor

    def check_same(self, values: Mapping[str, float], *, device: torch.device) -> None:
        """Raise a ValueError on every process if `values` are not the same on all of them; waits for the device."""
        if self.size == 1:
            return
        rows = self.gather(torch.tensor([list(values.values())], dtype=torch.float64, device=device)).tolist()
        for name, found in zip(values, zip(*rows, strict=True), strict=True):
            if len({repr(value) for value in found}) > 1:
                listed = ", ".join(f"{value:.17g}" for value in found)
                raise ValueError(f"the processes do not agree on the {name}: {listed}")


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, peers: Peers) -> Tensor:
        ctx.peers, ctx.rows = peers, len(rows)
        gathered = rows.new_empty(peers.size * len(rows), *rows.shape[1:])
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
        gather(gathered, rows.contiguous(), group=peers.group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        start = ctx.peers.index * ctx.rows
        return gradient[start : start + ctx.rows] * ctx.peers.size, None


class GlobalCrossEntropy(nn.Module):
    """Weighted cross-entropy of a batch that is split among processes, in shards of any size, none included.

        L = Σ_i w_{y_i} CE(f(x_i), y_i) / Σ_i w_{y_i},    both sums over the shards of all processes

    Each process returns N times its own part of the first sum over the whole second one: the mean over processes is
    L, and so with gradients. (The mean of each shard's own L is another loss, wherever their weights differ.)

    Args:
        weight: w, one for each class, (K,); 1 where not given.
        process_group: the processes; all of them by default.
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, *, process_group: Group = "auto") -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.peers = find_peers(None, process_group)

    def forward(self, logits: Tensor, label: Tensor) -> Tensor:
        """This process's part of the loss, from logits (b, K) and labels (b,)."""
        weight = None if self.weight is None else self.weight.to(logits.dtype)
        if self.peers.size == 1:
            return F.cross_entropy(logits, label, weight=weight)
        part = F.cross_entropy(logits, label, weight=weight, reduction="sum")
        share = part.new_full((), len(label)) if weight is None else weight[label].sum()
        return part * (self.peers.size / self.peers.sum(share))


def find_peers(model: nn.Module | None, group: Group) -> Peers:
    """The processes that train `model` together, and how its gradients come about."""
    if group is None or not _initialised():
        return Peers(alone=True)
    own = None if group == "auto" else group
    if model is None:
        return Peers(own)
    if (wrapper := _data_parallel(model)) is not None:
        return Peers(own or wrapper.process_group, averages=False)
    sharded = [parameter for parameter in model.parameters() if in_shards(parameter)]
    if not sharded:
        return Peers(own)
    mesh = sharded[0].device_mesh
    if own is None and mesh.ndim == 1:
        own = mesh.get_group()
    return Peers(own, sharded=True)


def in_shards(tensor: object) -> TypeGuard[DTensor]:
    """Whether a tensor is one that FSDP2 has put in shards: told by a trait, since its class takes long to load."""
    return hasattr(tensor, "full_tensor")


def unreduced(model: nn.Module) -> AbstractContextManager[None]:
    """Keeps a forward pass whose gradients are averaged by hand out of the sight of DDP's reducer."""
    wrapper = _data_parallel(model)
    return nullcontext() if wrapper is None else wrapper.no_sync()


def shard(rows: Tensor, index: int, count: int) -> Tensor:
    """The `index`-th of `count` shards of `rows`, all of one length: what is missing repeats the last row.

    Put together in order, the shards are `rows` followed by the padding.
    """
    length = -(-len(rows) // count)
    places = torch.arange(index * length, (index + 1) * length, device=rows.device)
    return rows[places.clamp_max(len(rows) - 1)]


def wrapped_in(model: nn.Module) -> nn.Module | None:
    """The module inside a wrapper: DistributedDataParallel or DataParallel, torch.compile's or Lightning Fabric's."""
    if isinstance(model, DistributedDataParallel | nn.DataParallel):
        inner: object = model.module
    else:
        inner = getattr(model, "_forward_module", getattr(model, "_orig_mod", None))
    return inner if isinstance(inner, nn.Module) else None


def _data_parallel(model: nn.Module | None) -> DistributedDataParallel | None:
    """The DistributedDataParallel that `model` is, perhaps inside another wrapper."""
    while model is not None and not isinstance(model, DistributedDataParallel):
        model = wrapped_in(model)
    return model


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()
