"""What it costs to have images at hand: those that lie on the device, and those streamed to it, against none to fetch.

Plain training on a fresh network. *Ready* has one batch on the device as the network takes it, at every iteration the
same. *Resident* gathers each batch from bytes on the device and draws a random crop and flip of every image; *streamed*
does so with images that stay in the machine's memory. On a GPU: ResNet-50 on 224 pixels, compiled, in bf16.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import torch

from ipg.benchmarks.gpu import BATCH, noise
from ipg.benchmarks.iterations import Block, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.config import RunConfig
from ipg.models import build_model
from ipg.training.device import numerics
from ipg.training.engine import compiling
from ipg.training.materials import Materials

__all__ = ["measure"]

SECONDS = 0.5
"""About how long a block of iterations takes."""


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time iterations on images from each place; nothing is streamed where the device is the machine itself."""
    gpu = device.type == "cuda"
    name, size = ("resnet50", 224) if gpu else ("small_cnn", 14)
    materials = partial(_materials, name, 3, size)
    plain = RunConfig(
        method="erm", batch=BATCH, learning_rate=1e-4, schedule="constant", class_weighted=False, held_out_pairs=0,
        device=device.type, engine="compiled" if gpu else "auto",
    )  # fmt: skip
    seen = plain.with_changes(crop=0.7, flip=True)
    blocks = {
        f"{name} ready": _block(plain, iterations(plain, materials(), device, ready=True), device),
        f"{name} resident": _block(seen, iterations(seen, materials(), device), device),
    }
    if gpu:
        blocks[f"{name} streamed"] = _block(seen, iterations(seen, materials(), device, resident=0.0), device)
    for block in blocks.values():
        block(4 if quick else 16)  # compile, capture, and let libraries settle
    steps = 4 if quick else steps_for(blocks[f"{name} ready"], device, seconds=SECONDS)
    work = {case: partial(_images, block, steps, device) for case, block in blocks.items()}
    found = take_turns(work, 1 if quick else 6)
    others = [case for case in found if not case.endswith("ready")]
    yield from compare("loading", found, unit="images/s", baselines=dict.fromkeys(others, f"{name} ready"))


def _images(block: Block, steps: int, device: torch.device) -> float:
    """Images a second."""
    return 1e3 * BATCH / per_step(block, steps, device)


def _block(config: RunConfig, step: Block, device: torch.device) -> Block:
    """Iterations under the numerics of a run."""

    def block(steps: int) -> None:
        with numerics(config, device), compiling(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says while it compiles
            step(steps)

    return block


def _materials(name: str, channels: int, size: int) -> Materials:
    """Noise, and a network for it."""
    table, _ = noise(channels, size)
    return Materials(table, build_model(name, channels=channels, classes=2))
