"""The hub of Hugging Face, which timm and transformers fetch from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_unanswered", "quiet_hub"]


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep the hub's client from telling of every attempt that fails: what comes of them is said once, at the end."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def is_unanswered(error: BaseException) -> bool:
    """Whether an error, or its cause, is that the hub does not answer and no copy is on this machine."""
    if any(kind.__name__ == "LocalEntryNotFoundError" for kind in type(error).__mro__):
        return True
    return error.__cause__ is not None and is_unanswered(error.__cause__)
