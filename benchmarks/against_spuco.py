"""Ours against SpuCo, a published package of methods against spurious correlations, in images a second.

    python -m venv spuco && spuco/bin/pip install spuco "matplotlib<3.11"
    python benchmarks/against_spuco.py --spuco-python spuco/bin/python --mnist mnist.npz

The same images, network, batch size and number of threads; epochs take turns, ours in this process and SpuCo's in
processes of their own, timed from inside. Everything is measured twice: free, where SpuCo's four loader processes may
use cores that ours does not, and *held* to as many cores as threads, both sides alike. *Network alone* is forward,
backward and update on a batch that is ready, which no loop over the network as written can beat; *compiled* is ours
with `--engine compiled`, *bf16* with `--precision bf16`, settings that SpuCo does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ipg
from ipg.benchmarks.iterations import Block, iterations, per_step
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.benchmarks.rows import append, row
from ipg.benchmarks.steps import SIZES
from ipg.config import RunConfig
from ipg.data.load import load
from ipg.data.table import ImageTable
from ipg.models.native import obstacle
from ipg.training.materials import gather

BATCH = 128
EPOCH = {"small_cnn": 288, "mnist_cnn": 24}
"""Batches an epoch: nearly all of ColoredMNIST for the small network, few for the large one, which takes its time."""
WORKER = Path(__file__).with_name("spuco_worker.py")
CPU = torch.device("cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spuco-python", required=True, help="the Python of an environment with SpuCo")
    parser.add_argument("--mnist", help="MNIST as npz or folder; coloured fashion of the same shape where not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch, on either side")
    parser.add_argument("--quick", action="store_true", help="two batches an epoch: does it run?")
    parser.add_argument("--write", type=Path, metavar="FILE", help="append rows to FILE")
    given = parser.parse_args(arguments)
    if given.quick and given.write:
        parser.error("the figures of --quick mean nothing: leave out --write")
    torch.set_num_threads(given.threads)
    data = "colored_mnist" if given.mnist else "colored_fashion_noisy"
    for model, size in SIZES.items():
        table = load(data, path=given.mnist, size=size)
        batches = min(2 if given.quick else EPOCH[model], len(table.indices("train")) // BATCH)
        table = table.take(table.indices("train")[: batches * BATCH])
        for name, cores in (("", None), (" held", given.threads)):
            with held(cores):
                theirs = partial(spuco, given.spuco_python, table, model, given.threads)
                rates, versions = measure(table, model, theirs, 1 if given.quick else given.rounds)
            for found in in_words(f"{data} {model}{name}", rates):
                print(f"{found.case}: {found.value:.4g} {found.unit}", end="", flush=True)
                print(f", {found.ratio:.4g} × {found.baseline}" if found.ratio else "", flush=True)
                if given.write:
                    line = row(found, CPU)
                    append(given.write, line | {"versions": line["versions"] | versions})
    return 0


Trainer = Callable[[], float]
"""Trains an epoch and says how many seconds that took."""


def measure(
    table: ImageTable, model: str, theirs: Callable[[str], Any], rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Images a second of everybody in every round, and the versions of SpuCo and of its torch."""
    with ExitStack() as stack:
        cases: dict[str, Callable[[], float]] = {
            name: partial(_rate, block, len(table) // BATCH) for name, block in ours(table, model).items()
        }
        for name, method in (("SpuCo ERM", "erm"), ("SpuCo GroupDRO", "groupdro")):
            epoch, versions = stack.enter_context(theirs(method))
            cases[name] = partial(_epoch_rate, epoch, len(table))
        for work in cases.values():
            work()  # warm up
        return take_turns(cases, rounds), versions


def in_words(name: str, rates: dict[str, list[float]]) -> list[Measurement]:
    """The measurements of one network; who is compared with whom is said here."""
    baselines = {
        "ours ERM": ("SpuCo ERM", "network alone"),
        "ours ERM bf16": ("SpuCo ERM",),
        "ours ERM compiled": ("SpuCo ERM", "ours ERM"),
        "ours ERM compiled bf16": ("SpuCo ERM", "ours ERM bf16"),
        "ours GroupDRO": ("SpuCo GroupDRO",),
        "ours GroupDRO compiled bf16": ("SpuCo GroupDRO",),
        "ours IPG b32 every4": ("SpuCo GroupDRO",),
        "ours IPG b32 every4 compiled bf16": ("SpuCo GroupDRO",),
        "SpuCo ERM": ("network alone",),
    }
    return compare(
        "spuco",
        {f"{name} {case}": values for case, values in rates.items()},
        unit="images/s",
        baselines={
            f"{name} {case}": tuple(f"{name} {one}" for one in many)
            for case, many in baselines.items()
            if case in rates
        },
    )


@contextmanager
def held(cores: int | None) -> Iterator[None]:
    """Hold this process, and those it starts, to so many cores; None leaves it free."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    free = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(free)[-cores:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, free)


def ours(table: ImageTable, model: str) -> dict[str, Block]:
    """Plain and guided training by the training loop's stepper, and the network alone."""
    base = RunConfig(
        model=model, batch=BATCH, pairs=128, pair_batch=32, every=4, learning_rate=1e-3, schedule="constant",
        margin="0.1", held_out_pairs=0, precision="fp32", device="cpu", method="erm",
    )  # fmt: skip
    configs = {
        "ours ERM": base,
        "ours ERM bf16": base.with_changes(precision="bf16"),
        "ours GroupDRO": base.with_changes(method="groupdro"),
        "ours IPG b32 every4": base.with_changes(method="ipg"),
    }
    for name in ("ours ERM", "ours GroupDRO", "ours IPG b32 every4"):
        fast = configs[name].with_changes(engine="compiled")
        if name == "ours ERM" and obstacle(half=False) is None:
            configs[f"{name} compiled"] = fast
        if obstacle(half=True) is None:
            configs[f"{name} compiled bf16"] = fast.with_changes(precision="bf16")
    blocks = {name: iterations(config, gather(config, table=table), CPU) for name, config in configs.items()}
    return blocks | {"network alone": alone(gather(base, table=table).model, table)}


def alone(network: nn.Module, table: ImageTable) -> Block:
    """Iterations on one batch that is ready."""
    images, labels = table.images[:BATCH].float() / 255, table.label[:BATCH]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)

    def block(steps: int) -> None:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return block


def _rate(block: Block, steps: int) -> float:
    return 1e3 * BATCH / per_step(block, steps, CPU)


def _epoch_rate(epoch: Trainer, count: int) -> float:
    return count / epoch()


@contextmanager
def spuco(
    python: str, table: ImageTable, model: str, threads: int, method: str
) -> Iterator[tuple[Trainer, dict[str, str]]]:
    """A process with one of SpuCo's trainers, and its versions."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.pt"
        torch.save((table.images, table.label, table.attribute), data)
        (Path(folder) / "ipg").symlink_to(Path(ipg.__file__).parent)  # its own packages stay its own
        command = [python, "-W", "ignore", str(WORKER), method, "--data", str(data), "--network", model]
        command += ["--batch", str(BATCH), "--threads", str(threads)]
        environment = {**os.environ, "PYTHONPATH": folder}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            first = _line(process)

            def epoch() -> float:
                if process.stdin is not None:
                    process.stdin.write("epoch\n")
                    process.stdin.flush()
                return float(_line(process))

            try:
                yield epoch, {"spuco": first["spuco"], "spuco_torch": first["torch"]}
            finally:
                if process.stdin is not None:
                    process.stdin.close()


def _line(process: subprocess.Popen[str]) -> Any:
    """What the process says next."""
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise SystemExit("SpuCo's process ended; what it said stands above. Is this the Python that has SpuCo?")
    return json.loads(line)


if __name__ == "__main__":
    sys.exit(main())
