"""What it costs that torch's threads wait for each other, on a CPU of their own and on one that is in use.

Plain training of a small network, in a process of its own for each measurement: by as many threads as torch takes,
which wait as they do by themselves (*spinning*) or as the command line lets them (*sleeping*, `ipg.threads`), and by
one thread. *Busy* has another program at work for every core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import torch

from ipg.benchmarks.gpu import BATCH, noise
from ipg.benchmarks.iterations import as_in_a_run, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.config import RunConfig
from ipg.models import build_model
from ipg.threads import SPINS
from ipg.training.materials import Materials

__all__ = ["measure", "step_time"]

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "spinning": {},
    "sleeping": {"GOMP_SPINCOUNT": str(SPINS)},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
"""What each case has in its environment, in the place of all that is said there of threads."""
OURS = ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
STEP = "from ipg.benchmarks.threads import step_time; print(step_time({seconds}))"
WORK = "while True: pass"


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time an iteration in fresh processes, with and without others beside them."""
    rounds, seconds = (1, 0.01) if quick else (8, 1.0)
    for state, others in {"idle": 0, "busy": os.cpu_count() or 1}.items():
        work = {f"{state} {name}": partial(_beside, others, seconds, added) for name, added in SETTINGS.items()}
        spinning, *rest = work
        yield from compare("threads", take_turns(work, rounds), unit="ms", baselines=dict.fromkeys(rest, spinning))


def step_time(seconds: float) -> float:
    """Milliseconds that an iteration takes in this process, over about so many seconds."""
    cpu = torch.device("cpu")
    config = RunConfig(
        method="erm", batch=BATCH, learning_rate=1e-3, schedule="constant", held_out_pairs=0, device="cpu"
    )
    table, _ = noise(3, 28)
    materials = Materials(table, build_model("small_cnn", channels=3, classes=2))
    block = as_in_a_run(iterations(config, materials, cpu), config, cpu)
    block(4)
    return per_step(block, steps_for(block, cpu, seconds=seconds), cpu)


def _beside(others: int, seconds: float, added: Mapping[str, str]) -> float:
    """`step_time` in a process with `added` in its environment, while `others` are at work."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS} | dict(added)
    with ExitStack() as stack:
        for _ in range(others):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", WORK]))
            stack.callback(other.kill)  # before it is waited for
        command = [sys.executable, "-c", STEP.format(seconds=seconds)]
        return float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
