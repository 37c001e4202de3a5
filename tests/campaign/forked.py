"""One command in a process of its own, forked from one that has everything imported: quick, bounded and measured."""

from __future__ import annotations

import atexit
import gc
import importlib
import math
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MEMORY", "PROGRAM", "SECONDS", "Ending", "Running", "command", "preload", "start"]

SECONDS = 30
"""How long a command may take."""
MEMORY = 2 << 30
"""Bytes that it may have resident."""
OUT_OF_MEMORY = "out of memory"
PROGRAM = (sys.executable, "-m", "ipg")
"""The command as a user starts it."""


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


class Running:
    """A command under way, known by the process that was started."""

    def __init__(self, pid: int, logs: Path) -> None:
        self.pid, self._logs, self._began = pid, logs, time.monotonic()
        self._ended: Ending | None = None

    def wait(self, seconds: float = math.inf) -> Ending | None:
        """How it ended; None where it has not after so many seconds."""
        until = time.monotonic() + seconds
        while self._ended is None:
            pid, status, used = os.wait4(self.pid, 0 if seconds == math.inf else os.WNOHANG)
            if pid:
                out, err = ((self._logs / name).read_text("utf-8", "replace") for name in ("out", "err"))
                code, took = os.waitstatus_to_exitcode(status), time.monotonic() - self._began
                self._ended = Ending(code, took, used.ru_maxrss * 1024, out, err)
            elif time.monotonic() >= until:
                return None
            else:
                time.sleep(0.002)
        return self._ended


def start(
    line: Sequence[str],
    *,
    folder: Path,
    logs: Path,
    environment: Mapping[str, str],
    launcher: Sequence[str] = (),
    first: Callable[[], object] = lambda: None,
) -> Running:
    """`ipg LINE` in `folder`, in a fork of this process, or by the program `launcher`; `first` is called in it before.

    What it says is in the files `out` and `err` of the folder `logs`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until it is the program's
    if (child := os.fork()) == 0:
        try:
            os.chdir(folder)
            os.environ.update(environment)
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            first()
            if launcher:
                signal.pthread_sigmask(signal.SIG_SETMASK, heard)
                os.execv(launcher[0], [*launcher, *line])
            os._exit(_in_here(line, heard))
        finally:
            os._exit(70)  # it should have ended above
    signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    return Running(child, logs)


def command(
    line: Sequence[str], *, folder: Path, logs: Path, environment: Mapping[str, str], real: bool = False
) -> Ending:
    """`ipg LINE` in `folder`, bounded: in a fork of this process, or where `real`, as a program of its own."""
    launcher = PROGRAM if real else ()
    running = start(line, folder=folder, logs=logs, environment=environment, launcher=launcher, first=_bounded)
    ending = running.wait()
    assert ending is not None  # it was waited for without end
    return ending


def _bounded() -> None:
    """Let this process have so much memory and so much time."""
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + 2 * MEMORY, resource.RLIM_INFINITY))
    signal.alarm(SECONDS)


def _in_here(line: Sequence[str], heard: Iterable[int]) -> int:
    """What `main` does, in this process, with the signals that it was started with."""
    from ipg.__main__ import main

    sys.argv = ["ipg", *line]
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    try:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        except KeyboardInterrupt:  # before it was begun: as a program that has not yet said what it does on Ctrl-C
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
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
