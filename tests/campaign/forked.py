"""One command in a process of its own, forked from one that has everything imported: quick, bounded and measured."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MEMORY", "SECONDS", "Ending", "command", "preload"]

SECONDS = 30
"""How long a command may take."""
MEMORY = 2 << 30
"""Bytes that it may have resident."""
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    code: int
    """Its exit status; less than zero for the signal that ended it."""
    seconds: float
    memory: int
    """The most bytes resident."""
    out: str
    err: str


def preload() -> None:
    """Import the whole program, so that its forks need not."""
    import ipg

    for module in pkgutil.walk_packages(ipg.__path__, "ipg."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    import torch
    from typer.testing import CliRunner

    from ipg.cli import app

    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    torch.optim.Adam([torch.zeros(1)])  # what both import when they are used first
    CliRunner().invoke(app, ["methods", "ipg"])
    gc.collect()
    gc.freeze()  # what is there stays shared
    atexit.register(gc.unfreeze)


def command(
    line: Sequence[str], *, folder: Path, logs: Path, environment: dict[str, str], real: bool = False
) -> Ending:
    """`ipg LINE` in `folder`: in a fork of this process, or where `real`, as a program of its own."""
    out, err = logs / "out", logs / "err"
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    if (child := os.fork()) == 0:
        try:
            os.chdir(folder)
            os.environ.update(environment)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (_mapped() + 2 * MEMORY, resource.RLIM_INFINITY))
            signal.alarm(SECONDS)
            if real:
                os.execv(sys.executable, [sys.executable, "-m", "ipg", *line])
            os._exit(_in_here(line))
        finally:
            os._exit(70)  # it should have ended above
    _, status, used = os.wait4(child, 0)
    return Ending(
        code=os.waitstatus_to_exitcode(status),
        seconds=time.monotonic() - began,
        memory=used.ru_maxrss * 1024,
        out=out.read_text("utf-8", "replace"),
        err=err.read_text("utf-8", "replace"),
    )


def _in_here(line: Sequence[str]) -> int:
    """What `main` does, in this process."""
    from ipg.__main__ import main

    sys.argv = ["ipg", *line]
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _mapped() -> int:
    """Bytes of address space that this process has: most of them the libraries of torch."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
