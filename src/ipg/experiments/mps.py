"""NVIDIA's Multi-Process Service (MPS), for as long as several workers share a GPU.

Without it processes on one GPU take turns, and several gain nothing; with it their kernels run side by side. Its
clients are processes that start while its variables are set. https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ipg.experiments.workers import sharing, suitable_workers
from ipg.training.device import resolve_device
from ipg.words import number_of

__all__ = ["SWITCH", "side_by_side"]

SWITCH = "IPG_MPS"
"""Set to 0, MPS is left alone."""
PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps/control")
"""The socket of a daemon that was started without naming a place."""
SECONDS = 60.0
"""How long the daemon may take to start, to serve the first process and to quit."""
KEEPER = 'read -r _; echo quit | "$0"; rm -rf "$1"'
"""Waits until its input ends, which it does however we end, and puts the daemon away; workers may save first."""
CLIENT = """\
from ctypes import CDLL, byref, c_void_p
cuda = CDLL("libcuda.so.1")
raise SystemExit(bool(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0)))
"""
"""A process that only asks for the GPU: a daemon that is there may still serve nobody."""


@contextmanager
def side_by_side(count: int, device: str, say: Callable[[str], None]) -> Iterator[bool]:
    """Inside, `count` processes that are started share GPUs by a daemon of our own; whether they do.

    There is none where every process has a GPU to itself, where NVIDIA's program is missing, where there is a daemon of
    the user's, whose affair it is, and where `IPG_MPS=0`. One that does not start is told of, and left at that.
    """
    left_alone = os.environ.get(SWITCH) == "0" or PIPES in os.environ or USUAL.exists()
    program = None if left_alone else shutil.which(PROGRAM)
    if program is None or resolve_device(device).type != "cuda" or sharing(count, device) == 1:
        yield False
        return
    folder = Path(tempfile.mkdtemp(prefix="ipg-mps-"))  # for its user alone
    variables = {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}
    for place in variables.values():
        Path(place).mkdir(mode=0o700)
    gpus = suitable_workers(device)
    who = f"{count} processes share {'the GPU' if gpus == 1 else number_of(gpus, 'GPU')}"
    with _set(variables), _kept(program, folder):
        if why := _start(program):
            say(f"{who} in turns: NVIDIA's Multi-Process Service does not start ({why}; {SWITCH}=0 leaves it alone)")
        else:
            say(f"{who} by NVIDIA's Multi-Process Service")
            yield True
            return
    yield False


@contextmanager
def _kept(program: str, folder: Path) -> Iterator[None]:
    """Afterwards, or when this process is killed, the daemon is told to quit and its folder is removed."""
    command = ["/bin/sh", "-c", KEEPER, program, str(folder)]
    keeper = subprocess.Popen(command, **_silent() | {"stdin": subprocess.PIPE})
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            keeper.communicate(timeout=SECONDS)


def _start(program: str) -> str | None:
    """Start the daemon and have it serve a process; what went wrong."""
    daemon, client = _silent(), _silent()
    if "-" not in os.environ.get("CUDA_VISIBLE_DEVICES", "-"):  # numbers, not GPU-5ebe… or MIG-3d1c…
        del daemon["env"]["CUDA_VISIBLE_DEVICES"]  # or clients would count from 0 among those
    try:
        subprocess.run([program, "-d"], check=True, timeout=SECONDS, **daemon)
        subprocess.run([sys.executable, "-I", "-c", CLIENT], check=True, timeout=SECONDS, **client)
    except subprocess.TimeoutExpired:
        return f"nothing for {SECONDS:g} s"
    except subprocess.CalledProcessError as error:
        return f"exit status {error.returncode}"
    except OSError as error:
        return str(error)
    return None


def _silent() -> dict[str, Any]:
    """How programs are started: out of Ctrl-C's reach, and without pipes, which a daemon would keep open."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return {**streams, "env": dict(os.environ), "start_new_session": True}


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)
