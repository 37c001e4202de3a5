"""How long torch's threads look out for each other on a CPU before they sleep."""

from __future__ import annotations

import os

__all__ = ["SPINS", "let_threads_sleep"]

SPINS = 1000
"""How often a thread looks before it sleeps; GNU's OpenMP, which torch brings along on Linux, looks 300,000 times."""


def let_threads_sleep() -> None:
    """Let the threads of this process and of those it starts sleep soon while they wait for each other.

    After every operation they wait for the last of them. On a CPU that other programs use, one that spins keeps the
    core from the one it waits for (docs/speed.md). What the environment says of it is left alone, and the library
    reads it once: when torch is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
