"""What a process is denied, mostly by functions that are called in it before the program begins."""

from __future__ import annotations

import ctypes
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["address_space", "disk", "files", "gpu", "may_mount", "memory", "privileges", "read_only"]

CAPABILITY_VERSION = 0x20080522
"""The third, with sets of 64 bits."""


def files(size: int) -> Callable[[], None]:
    """No file may have more bytes, as with `ulimit -f`."""

    def deny() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does when it starts
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return deny


def memory(more: int) -> Callable[[], None]:
    """So many bytes more than now, and no others."""

    def deny() -> None:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        now = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (now + more, resource.RLIM_INFINITY))

    return deny


def address_space(size: int) -> Callable[[], None]:
    """So many bytes in all, as with `ulimit -v`."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))


def gpu(fits: int, after: int) -> Callable[[], None]:
    """From an iteration on, steps on more than `fits` images end as they do on a GPU without memory."""

    def deny() -> None:
        import torch

        from ipg.training.stepping import EagerStep

        real, made = EagerStep.step, []

        def step(self: EagerStep, rows: torch.Tensor) -> None:
            made.append(1)
            if len(made) > after and len(rows) > fits:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            real(self, rows)

        EagerStep.step = step  # type: ignore[method-assign]

    return deny


def privileges() -> None:
    """None of root's: rights on files count for this process too."""
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write to the folders in it while the block lasts."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for one in folders:
        one.chmod(0o555)
    yield
    for one in folders:
        one.chmod(0o755)


@contextmanager
def disk(place: Path, *, size: int) -> Iterator[Callable[[str], None]]:
    """A disk of so many bytes at `place`; gives the function that mounts it again in another way."""
    place.mkdir()
    _mount(place, f"size={size}")
    try:
        yield lambda how: _mount(place, f"remount,{how}")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _mount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(place)], check=True, capture_output=True)


def may_mount(root: Path) -> bool:
    """Whether disks can be mounted, which needs root."""
    try:
        with disk(root / "mounted", size=1 << 16):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        (root / "mounted").rmdir()
