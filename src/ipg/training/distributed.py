"""One run by many processes, as `torchrun` starts them: each takes its shard of every batch.

All processes draw the same order from the same seed, so the batches, and with them the run, are those of one process:
the number of processes is no part of a run, and a checkpoint resumes on any other. The first process alone reads and
writes files and speaks. When to look, save and stop is agreed on, since clocks and signals differ.
"""

from __future__ import annotations

import copy
import gc
import importlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ipg.collectives import find_peers, shard
from ipg.config import RunConfig
from ipg.evaluation.groups import logits
from ipg.training.device import resolve_device
from ipg.training.sharding import at_rest, forget_processes, is_sharded, sharded
from ipg.words import listed

__all__ = ["ProcessLostError", "Team", "processes"]

PATIENCE = timedelta(minutes=5)
"""How long a process waits for the others before it takes them for lost. One that dies is noticed at once."""
MEET_SECONDS = 0.25
"""How often the processes agree on what to do next."""

WATCH_SECONDS = 1.0
"""How often a process looks whether `torchrun` is still there."""
GRACE_SECONDS = 60.0
"""How long it may then take over its checkpoint."""

T = TypeVar("T")


class ProcessLostError(RuntimeError):
    """Another process of the run has ended, or cannot be reached any more."""


@contextmanager
def processes(device: str) -> Iterator[bool]:
    """Join the processes that `torchrun` has started, where it has, and leave them in the end.

    Gives whether this process is the first, which speaks for all. `device` is the name of the device each is to use.
    """
    launched = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    if not launched or dist.is_initialized() or int(os.environ["WORLD_SIZE"]) == 1:
        yield not dist.is_initialized() or dist.get_rank() == 0
        return
    kind = resolve_device(device).type
    if kind == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(f"process {local} on this machine has no GPU of its own: {torch.cuda.device_count()} here")
        torch.cuda.set_device(local)
    with _ending_with_launcher(), _clear_loss():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=PATIENCE)
        yield dist.get_rank() == 0
        gc.collect()  # a wrapped model in a cycle would outlive its process group, which aborts at exit
        dist.destroy_process_group()  # not after an error: it may wait for a process that is gone
        forget_processes()


@contextmanager
def _ending_with_launcher() -> Iterator[None]:
    """Inside, this process ends when the `torchrun` that has started it is gone: it is asked to stop, then ended.

    Else it would train on unseen, and hold the folder of its run.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                if not over.wait(GRACE_SECONDS):
                    os._exit(1)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Team:
    """The processes of a run, from the loop's side; a process alone is a team of one."""

    def __init__(self) -> None:
        self.peers = find_peers(None, "auto")
        self.size, self.index = self.peers.size, self.peers.index
        self.leads = self.index == 0
        self._last: tuple[int, float] | None = None  # step and time of the last meeting
        self._next = 0

    def device(self, device: torch.device) -> torch.device:
        """The GPU of this process where `device` is a GPU."""
        if self.size == 1 or device.type != "cuda":
            return device
        return torch.device("cuda", torch.cuda.current_device())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, the loss of another process raises `ProcessLostError`."""
        if self.size == 1:
            yield
            return
        with _clear_loss():
            yield

    # -- the same for all ------------------------------------------------------------------------------------------

    def first(self, action: Callable[[], T]) -> T:
        """Let the first process do `action`, and give its result, or its error, to all."""
        if self.size == 1:
            return action()
        told: list[Any] = [None, None]
        if self.leads:
            try:
                told[0] = action()
            except Exception as error:
                told[1] = error
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise told[1]
        result: T = told[0]
        return result

    def check_same(self, what: str, value: Any) -> None:
        """Raise on all processes if they do not hold the same `value`."""
        if self.size == 1:
            return
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        if differing := [index for index, other in enumerate(found) if other != found[0]]:
            raise ValueError(f"process {differing[0]} has other {what} than process 0: start all with the same command")

    def agree(self, *wishes: bool, step: int | None = None) -> tuple[bool, ...]:
        """What any process wishes, every process does.

        With `step` they only meet a few times a second, at steps that the last meeting has settled; at others nobody
        does anything.
        """
        if self.size == 1:
            return wishes
        if step is not None and step < self._next:
            return tuple(False for _ in wishes)
        now, ahead = time.perf_counter(), 1
        if step is not None and self._last is not None:
            steps_a_second = (step - self._last[0]) / max(now - self._last[1], 1e-9)
            ahead = max(1, int(steps_a_second * MEET_SECONDS))
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        ballot = torch.tensor([*wishes, ahead], dtype=torch.int64, device=device)
        dist.all_reduce(ballot, op=dist.ReduceOp.MAX)
        *decided, ahead = ballot.tolist()
        if step is not None:
            self._next, self._last = step + ahead, (step, now)
        return tuple(map(bool, decided))

    # -- shards ------------------------------------------------------------------------------------------------------

    def replica(self, model: nn.Module, device: torch.device, *, batch_norm: str) -> nn.Module:
        """`model` in the form whose task gradients are averaged over the processes, its weights those of the first."""
        if self.size == 1 or is_sharded(model):
            return model
        model = _normalised(model, device, batch_norm)
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def shares(self, config: RunConfig) -> bool:
        """Whether the processes share one network, of which each holds a part."""
        return config.shard and self.size > 1

    def sharded(
        self, model: nn.Module, images: Tensor, device: torch.device, *, batch_norm: str, bf16: bool
    ) -> nn.Module:
        """A copy of `model` in shards, its weights those of the first process; one of the uint8 `images` passes it."""
        own = _normalised(copy.deepcopy(model), device, batch_norm)
        return sharded(own, images[:1].float() / 255, device, bf16=bf16)

    def rows(self, rows: Tensor) -> Tensor:
        """This process's part of the rows of a task batch; the parts differ by one row at most."""
        return rows if self.size == 1 else rows.tensor_split(self.size)[self.index]

    def logits(self, model: nn.Module, images: Tensor, *, autocast: torch.dtype | None) -> Tensor:
        """What `model` says of each of the `images`, (N, K), each process having looked at a part of them."""
        alone = self.size == 1 or len(images) == 0
        part = logits(model, images if alone else shard(images, self.index, self.size), autocast=autocast)
        at_rest(model)
        return part if alone else self.peers.gather(part)[: len(images)]

    def settle(self, model: nn.Module, *, parameters: bool = False) -> None:
        """Give all processes the first one's buffers, and its parameters where so asked.

        BatchNorm's statistics are those of a process's own shards.
        """
        for tensor in (*model.buffers(), *(model.parameters() if parameters else ())):
            self.peers.broadcast_(tensor.detach())


def _normalised(model: nn.Module, device: torch.device, batch_norm: str) -> nn.Module:
    """`model` with BatchNorm over the batches of all processes where that can be; elsewhere a warning."""
    if batch_norm != "train" or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return model
    if device.type == "cuda":
        return synchronised(model)
    warnings.warn(
        "BatchNorm in train mode sees each process's own shard here: SyncBatchNorm needs GPUs. Use --batch-norm eval "
        "for the results of one process.",
        stacklevel=3,
    )
    return model


def synchronised(model: nn.Module) -> nn.Module:
    """`model` with BatchNorm over the batches of all processes, in place.

    Raises:
        ValueError: one of its layers is a BatchNorm of a kind of its own, which would become an ordinary one.
    """
    kinds = {type(module) for module in model.modules() if isinstance(module, _BatchNorm)}
    own = kinds - {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}
    if not own:
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(model))  # type: ignore[no-untyped-call]
    known: set[type] = set()
    with suppress(ImportError):
        layers: Any = importlib.import_module("timm.layers")
        known = {layers.BatchNormAct2d, layers.SyncBatchNormAct}  # which have their activation inside
        if own <= known:
            return cast(nn.Module, layers.convert_sync_batchnorm(model))
    names = listed(sorted(kind.__name__ for kind in own - known))
    raise ValueError(
        f"the network has {names}, which cannot be synchronised between processes: train it in one process, or with "
        "--batch-norm eval"
    )


@contextmanager
def _clear_loss() -> Iterator[None]:
    """Say in plain words that another process is gone."""
    try:
        yield
    except ProcessLostError:
        raise  # said already
    except RuntimeError as error:
        said = str(error)
        if not isinstance(error, dist.DistError) and not any(word in said.lower() for word in ("gloo", "nccl")):
            raise
        raise ProcessLostError(
            "another process of this run has ended or cannot be reached any more. Run the same command again, with as "
            f"many processes as you like: it goes on from the last checkpoint. ({said.splitlines()[0]})"
        ) from error
