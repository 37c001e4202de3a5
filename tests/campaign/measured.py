"""A command as a user starts it, with how long it takes and what it has resident while it runs."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Measured", "fastest", "measured"]

EVERY = 0.02
"""Seconds between two looks at a process."""
SHORT = 5.0
"""Seconds below which a command is started three times: what else the machine does weighs more there."""


@dataclass
class Measured:
    """What a command took."""

    code: int = 0
    seconds: float = 0.0
    peak: int = 0
    """The most bytes resident."""
    resident: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the start, and bytes resident then, about once a second."""
    err: str = ""


def measured(line: Sequence[str], *, folder: Path, environment: dict[str, str], seconds: float = math.inf) -> Measured:
    """`ipg LINE` in `folder`; after so many seconds it is ended."""
    found = Measured()
    with (folder / "said").open("w+", encoding="utf-8") as said:
        began = time.monotonic()
        run = [sys.executable, "-m", "ipg", *line]
        process = subprocess.Popen(
            run, cwd=folder, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            while process.poll() is None and found.seconds < seconds:
                _look(process.pid, found)
                time.sleep(EVERY)
                found.seconds = time.monotonic() - began
        finally:
            ended = process.poll() is not None
            process.kill()
            found.code = process.wait() * ended  # who is ended from here has not failed
        said.seek(0)
        found.err = said.read()
    return found


def fastest(line: Sequence[str], *, folder: Path, environment: dict[str, str]) -> Measured:
    """The same, three times where it is short: the fastest, with the most that any had resident."""
    found = [measured(line, folder=folder, environment=environment)]
    while found[0].seconds < SHORT and len(found) < 3:
        found.append(measured(line, folder=folder, environment=environment))
    best = min(found, key=lambda one: (one.code != 0, one.seconds))
    best.peak = max(one.peak for one in found)
    return best


def _look(pid: int, found: Measured) -> None:
    """What the system says of the process: its peak is kept by the kernel and cannot be missed."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    facts = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    if "VmHWM" in facts:  # a process that has ended has none
        found.peak = max(found.peak, _bytes(facts["VmHWM"]))
        if not found.resident or found.seconds - found.resident[-1][0] >= 1:
            found.resident.append((found.seconds, _bytes(facts["VmRSS"])))


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1024
