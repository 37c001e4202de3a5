"""`python -m ipg` and the command `ipg`."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line."""
    from ipg.cli import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without θ shows a question mark in its place
    app(prog_name="ipg")


if __name__ == "__main__":
    main()
