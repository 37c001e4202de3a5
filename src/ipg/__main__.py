"""`python -m ipg` and the command `ipg`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from ipg.cli import app

    app(prog_name="ipg")


if __name__ == "__main__":
    main()
