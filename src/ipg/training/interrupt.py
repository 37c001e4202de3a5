"""Ctrl-C and SIGTERM as a request to stop at the next whole step.

A run in its last part is past such steps and goes on to its end; the request is then kept for whoever would begin
something else after it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

__all__ = ["Interrupted", "StopRequest", "late_request", "stop_on_signals"]


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and has stopped with its state saved."""


class StopRequest:
    """Whether somebody has asked the run to stop."""

    def __init__(self) -> None:
        self.made = False


_KEPT: ContextVar[StopRequest | None] = ContextVar("_KEPT", default=None)
"""Where a request goes that a run has outlasted; nowhere where nothing comes after the run."""


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second one interrupts at once.

    A request that has not ended the block is handed on, see `late_request`.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request.made:
            raise KeyboardInterrupt
        request.made = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _hand_on(request)


@contextmanager
def late_request() -> Iterator[StopRequest]:
    """Keep the request that comes too late for a run inside, so that nothing else is begun after it."""
    kept = StopRequest()
    before = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(before)
        _hand_on(kept)


def _hand_on(request: StopRequest) -> None:
    """Give a request to whoever waits for the end of this run."""
    if request.made and (kept := _KEPT.get()) is not None:
        kept.made = True
