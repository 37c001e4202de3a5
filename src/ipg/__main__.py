"""`python -m ipg` and the command `ipg`."""

from __future__ import annotations

import io
import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from ipg.cli import app

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without θ shows a question mark in its place
        app(prog_name="ipg")
    except KeyboardInterrupt:  # before the command has begun, or once more while it ends
        print("ipg: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # on the way out there is nothing left to interrupt


if __name__ == "__main__":
    main()
