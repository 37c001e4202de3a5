"""Where a number comes from: commit, versions, hardware, date."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch

import ipg

__all__ = ["commit", "hardware", "provenance", "versions"]


@cache
def commit() -> str:
    """The commit of the source, with `-dirty` where files differ from it, or what `IPG_COMMIT` says.

    Of a package that was installed, so that there is none, `source-` and a digest of its files.
    """
    if given := os.environ.get("IPG_COMMIT"):
        return given
    folder = Path(ipg.__file__).resolve().parent

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
        return run.stdout.strip()

    try:
        if not git("ls-files", "--", "__init__.py"):
            return _digest(folder)  # installed somewhere inside another project's repository
        dirty = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return _digest(folder)


def _digest(folder: Path) -> str:
    """What the source in a folder is known by: names and contents of its files."""
    digest = hashlib.sha256()
    for file in sorted(path.relative_to(folder) for path in folder.rglob("*.py")):
        digest.update(file.as_posix().encode() + b"\0" + (folder / file).read_bytes() + b"\0")
    return f"source-{digest.hexdigest()[:12]}"


@cache
def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    return {"ipg": ipg.__version__, "python": platform.python_version(), "torch": str(torch.__version__)}


def hardware(device: torch.device) -> str:
    """The machine in words: the GPU, or the processor and the threads torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{_processor()}, {torch.get_num_threads()} threads"
    return f"{platform.machine()} {device.type}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def provenance(device: torch.device) -> dict[str, object]:
    """Everything a result row needs to say of its origin."""
    return {
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
