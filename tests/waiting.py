"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_for"]


def wait_for(what: Callable[[], object], *, seconds: float = 120.0) -> None:
    """Wait until `what` returns something true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds:g} seconds in vain"
        time.sleep(0.02)
