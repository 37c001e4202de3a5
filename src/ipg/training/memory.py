"""Memory of the device: who else has some, and what to say when a batch does not fit: which one would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from ipg.evaluation.parts import free_memory

__all__ = ["OutOfMemoryError", "fitting_batch", "memory_of_others"]

LIBRARIES = 2 * 2**30
"""Bytes that CUDA and its libraries take for a process at most, beside its tensors."""
SPARE = 1 / 16
"""The share of what the process has of a GPU's memory that a batch which is said to fit has to leave."""


class OutOfMemoryError(RuntimeError):
    """A batch does not fit; the message says which one would, and how many bytes other processes have."""

    def __init__(self, *, batch: int, pair_batch: int | None, fits: int | None, kept: bool, others: int = 0) -> None:
        if fits is not None:
            remedy = f"--batch {fits} fits, as was tried just now"
        else:
            beside = "" if pair_batch is None else f" beside --pair-batch {pair_batch}: lower both"
            remedy = f"no smaller one was found to fit{beside or ': lower --batch and --size'}"
        other = " A run with another batch is another run: give it another --output." if kept else ""
        held = f" Other processes have {others / 2**30:.0f} GiB of the device: wait for them, or use fewer --workers."
        company = held if others else ""
        super().__init__(f"out of memory with --batch {batch}; {remedy}.{company}{other}")


def fitting_batch(rehearse: Callable[[Tensor], None], rows: Tensor) -> int | None:
    """How many of `rows` at most, halved as often as it takes, `rehearse` can take; None where there are none.

    What is rehearsed are real iterations, after which there is no going on: only for a run that has to end. A little
    memory is kept from them: the run itself fills it in another order, and its last batch has another length.
    """
    size = len(rows) // 2
    with suppress(torch.OutOfMemoryError), _spared(rows.device):
        while size:
            free_memory()
            with suppress(torch.OutOfMemoryError):
                rehearse(rows[:size])
                return size
            size //= 2
    return None


@contextmanager
def _spared(device: torch.device) -> Iterator[None]:
    """Inside, a GPU has a little less memory than the process has of it now."""
    if device.type != "cuda":
        yield
        return
    size = int(SPARE * torch.cuda.memory_reserved(device))
    free_memory()
    spare = torch.empty(size, dtype=torch.uint8, device=device)
    yield
    del spare


def memory_of_others(device: torch.device) -> int:
    """Bytes that other processes have on the device; 0 where they are none, or too few to tell from our libraries'."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    found = total - free - torch.cuda.memory_reserved(device)
    return found if found > LIBRARIES else 0
