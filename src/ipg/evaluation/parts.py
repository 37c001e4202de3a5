"""Many images through a network, as many at a time as fit into the memory of its device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

__all__ = ["free_memory", "in_parts"]


def in_parts(answer: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """What `answer` makes of each part of `images`, put together; there is one part at least, if of no image.

    Parts have `size` images, or half as many, as often as it takes, where the device lacks the memory for them.
    """
    while size > 1:
        with suppress(torch.OutOfMemoryError):  # inside, the error would hold on to all that was made
            return torch.cat([answer(part) for part in torch.split(images, size)])
        size //= 2
        free_memory()
    return torch.cat([answer(part) for part in torch.split(images, 1)])


def free_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
