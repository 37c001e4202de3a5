"""What the command line and the import cost before anything is done, against Python alone and against torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import torch

from ipg.benchmarks.measure import Measurement, compare, take_turns, timed

__all__ = ["measure"]

COMMANDS = {
    "python": ["-c", "pass"],
    "import ipg": ["-c", "import ipg"],
    "ipg --help": ["-m", "ipg", "--help"],
    "import torch": ["-c", "import torch"],
    "import ipg.guidance": ["-c", "import ipg.guidance"],
}
BASELINES = {"import ipg": "python", "ipg --help": "python", "import ipg.guidance": "import torch"}


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time fresh interpreters."""
    cpu = torch.device("cpu")
    names = list(COMMANDS)[:3] if quick else list(COMMANDS)  # torch takes seconds to import
    work = {name: partial(timed, partial(_run, *COMMANDS[name]), cpu) for name in names}
    seconds = take_turns(work, 1 if quick else 9)
    times = {name: [1e3 * value for value in values] for name, values in seconds.items()}
    yield from compare("startup", times, unit="ms", baselines=BASELINES)


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
