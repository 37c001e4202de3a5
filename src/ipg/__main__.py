"""`python -m ipg` and the command `ipg`."""

from __future__ import annotations

import io
import signal
import sys
from types import FrameType

from ipg.threads import let_threads_sleep

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    let_threads_sleep()
    heard = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from ipg.cli import app

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without θ shows a question mark in its place
        app(prog_name="ipg")
    except KeyboardInterrupt:  # before the command has begun, or once more while it ends
        _end()
    except Exception:
        if not heard:
            raise
        _end()  # libraries that are interrupted while they are imported fail in ways of their own
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # on the way out there is nothing left to interrupt


def _end() -> None:
    """Say, unless that was done, that the program was interrupted, and exit."""
    if not getattr(sys.modules.get("ipg.cli.errors"), "told", None):
        print("ipg: interrupted", file=sys.stderr)
    sys.exit(130)


if __name__ == "__main__":
    main()
