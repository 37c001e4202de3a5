"""What it costs to have images at hand: those that lie on the device, and those streamed to it, against none to fetch.

Plain training on a fresh network. *Ready* has one batch on the device as the network takes it, at every iteration the
same. *Resident* gathers each batch from bytes on the device and draws a random crop and flip of every image; *streamed*
does so with images that stay in the machine's memory. On a GPU: ResNet-50 on 224 pixels, compiled, in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ipg.benchmarks.gpu import BATCH, noise
from ipg.benchmarks.iterations import Block, as_in_a_run, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.config import RunConfig
from ipg.models import build_model
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
        f"{name} ready": as_in_a_run(iterations(plain, materials(), device, ready=True), plain, device),
        f"{name} resident": as_in_a_run(iterations(seen, materials(), device), seen, device),
    }
    if gpu:
        streamed = iterations(seen, materials(), device, resident=0.0)
        blocks[f"{name} streamed"] = as_in_a_run(streamed, seen, device)
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


def _materials(name: str, channels: int, size: int) -> Materials:
    """Noise, and a network for it."""
    table, _ = noise(channels, size)
    return Materials(table, build_model(name, channels=channels, classes=2))
