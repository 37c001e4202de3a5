"""Ctrl-C and SIGTERM as a request to stop at the next whole step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "StopRequest", "stop_on_signals"]


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and has stopped with its state saved."""


class StopRequest:
    """Whether somebody has asked the run to stop."""

    def __init__(self) -> None:
        self.made = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second one interrupts at once."""
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
