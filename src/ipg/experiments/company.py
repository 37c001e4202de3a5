"""Who else computes on a GPU, as its driver tells: also those that have too little of its memory to be seen by that."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from functools import lru_cache

import torch

__all__ = ["others_on"]

PROGRAM = "nvidia-smi"
QUERY = ("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
SERVER = "nvidia-cuda-mps-server"
"""Is listed beside the processes that share a GPU by it, and computes nothing itself."""
ASK_SECONDS = 60.0
"""How long an answer counts: the program takes up to a second."""
PATIENCE = 10.0
"""Seconds that it may take."""


def others_on(device: torch.device) -> int:
    """How many other processes compute on a GPU; 0 where its driver does not tell, as in some containers."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    torch.cuda.mem_get_info(
        device
    )  # puts this process on the list, so that it can be taken off: it may have another id
    own = str(torch.cuda.get_device_properties(device).uuid)
    listed = [line.split(", ", 2) for line in _list(int(time.monotonic() // ASK_SECONDS)).splitlines()]
    found = [
        pid
        for gpu, pid, name in (parts for parts in listed if len(parts) == 3)
        if own in gpu and SERVER not in name and pid != str(os.getppid())  # which hands out trials, and runs none
    ]
    return max(0, len(found) - 1)


@lru_cache(maxsize=1)
def _list(_: int) -> str:
    """What the driver lists, a process a line; nothing where it cannot be asked."""
    program = shutil.which(PROGRAM)
    if program is None:
        return ""
    try:
        asked = subprocess.run([program, *QUERY], capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout
