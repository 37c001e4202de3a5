"""Many images through a network, as many at a time as fit into the memory of its device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

__all__ = ["free_memory", "in_parts"]


def in_parts(
    answer: Callable[[Tensor], Tensor], images: Tensor, size: int, *, fill: bool = False, again: bool = True
) -> Tensor:
    """What `answer` makes of each part of `images`, put together; there is one part at least, if of no image.

    Parts have `size` images, or half as many, as often as it takes, where the device lacks the memory for them. The
    last may be smaller, unless it is to be filled up: with its last image, of which no answer is kept. Where nothing
    can be tried `again`, as by one of several processes that share a network, a lack of memory is an error.
    """
    if not fill:
        size = max(1, min(size, len(images)))  # or the same part would be tried again and again
    while again and size > 1:
        with suppress(torch.OutOfMemoryError):  # inside, the error would hold on to all that was made
            return _answers(answer, images, size, fill=fill)
        size //= 2
        free_memory()
    return _answers(answer, images, 1 if again else size, fill=fill)


def _answers(answer: Callable[[Tensor], Tensor], images: Tensor, size: int, *, fill: bool) -> Tensor:
    def of(part: Tensor) -> Tensor:
        missing = -len(part) % size if fill else 0
        whole = torch.cat([part, part[-1:].expand(missing, *part.shape[1:])]) if missing else part
        return answer(whole)[: len(part)]

    return torch.cat([of(part) for part in torch.split(images, size)])


def free_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
