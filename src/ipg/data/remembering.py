"""What was read for one run serves the next: inside `remembering()` the same is read once.

For studies, whose trials follow one another on the same images. Elsewhere files are read whenever they are asked for,
since they may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["recalled", "remembering"]

T = TypeVar("T")
BYTES = 2 << 30
"""How much is kept beside what was read last."""

_shelf: ContextVar[dict[Hashable, tuple[object, int]] | None] = ContextVar("shelf", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Inside, `recalled` reads what it is asked for once."""
    token = _shelf.set({})
    try:
        yield
    finally:
        _shelf.reset(token)


def recalled(key: Hashable, read: Callable[[], T], size: Callable[[T], int]) -> T:
    """What `read` gives, or has given for this `key`.

    Args:
        key: all that decides what is read.
        read: reads it.
        size: how many bytes it takes.
    """
    shelf = _shelf.get()
    if shelf is None:
        return read()
    if key not in shelf:
        found = read()
        shelf[key] = (found, size(found))
    shelf[key] = shelf.pop(key)  # the last are those used last
    while len(shelf) > 1 and sum(taken for _, taken in shelf.values()) > BYTES + shelf[key][1]:
        del shelf[next(iter(shelf))]
    return shelf[key][0]  # type: ignore[return-value]
