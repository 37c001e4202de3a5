"""Iterations on a GPU as the loop runs them at its fastest, against plain training the way most people run it.

Ours are compiled, in bf16, each a CUDA graph; images lie on the GPU as bytes and are gathered and scaled inside the
iteration. *Eager fp32 erm* is a plain loop with torch as it comes (TF32 in convolutions), its batch ready on the GPU,
loss and accuracy asked for at every step. ResNet-50 is timm's, fresh, on 224 pixels; the images are noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ipg.benchmarks.iterations import Block, as_in_a_run, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.benchmarks.plain import erm_step
from ipg.benchmarks.steps import Kind
from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.methods import method_class
from ipg.models import build_model
from ipg.pairs.pairset import PairSet
from ipg.training.materials import Materials

__all__ = ["BATCH", "KINDS", "SECONDS", "WARM_UP", "measure", "noise", "ours"]

BATCH = 128
KINDS = (
    Kind("erm", "erm"),
    Kind("ipg b128", "ipg", 128),
    Kind("ipg b32", "ipg", 32),
    Kind("ipg b32 every4", "ipg", 32, 4),
)
SECONDS = 0.5
"""About how long a block of iterations takes."""
WARM_UP = 16
"""Iterations of each case beforehand: they compile, capture, and settle what cuDNN chooses."""


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time an iteration of each kind on each network; nothing on a machine without a CUDA GPU."""
    if device.type != "cuda":
        return
    networks: dict[str, tuple[Callable[[], nn.Module], int, int]] = {"mnist_cnn": (_mnist_cnn, 2, 28)}
    if not quick:
        networks["resnet50"] = (_resnet50, 3, 224)
    for name, (make, channels, size) in networks.items():
        materials = noise(channels, size)
        blocks = {f"{name} {kind.name}": ours(kind, make(), materials, device) for kind in KINDS}
        blocks[f"{name} eager fp32 erm"] = _plain(make(), materials, device)
        for block in blocks.values():
            block(WARM_UP)
        steps = 4 if quick else steps_for(blocks[f"{name} erm"], device, seconds=SECONDS)
        work = {case: partial(per_step, block, steps, device) for case, block in blocks.items()}
        times = take_turns(work, 1 if quick else 6)
        ideals = {f"{name} {kind.name}": kind.ideal(BATCH) for kind in KINDS if kind.method != "erm"}
        yield from compare("gpu", times, unit="ms", baselines=dict.fromkeys(ideals, f"{name} erm"), ideals=ideals)
        against = [case for case in times if not case.endswith("eager fp32 erm")]
        slow = compare("gpu", times, unit="ms", baselines=dict.fromkeys(against, f"{name} eager fp32 erm"))
        yield from (found for found in slow if found.baseline is not None)
        del blocks, work
        torch.cuda.empty_cache()


def ours(
    kind: Kind, model: nn.Module, materials: tuple[ImageTable, PairSet], device: torch.device, **options: str
) -> Block:
    """Iterations by the training loop's own parts; compiled, where `options` do not say otherwise."""
    config = RunConfig(
        method=kind.method, pair_batch=kind.pair_batch, every=kind.every, batch=BATCH, learning_rate=1e-4,
        schedule="constant", margin="0.1", class_weighted=False, held_out_pairs=0, device=device.type,
    ).with_changes(**{"engine": "compiled", **options})  # fmt: skip
    table, pairs = materials
    needs = method_class(kind.method).needs
    given = Materials(
        table, model, pairs if "pairs" in needs else None, masks=_left_halves(table) if "masks" in needs else None
    )
    step = iterations(config, given, device)
    short = config.engine == "captured"  # as runs on few photographs are, for which cuDNN tries no kernels
    return as_in_a_run(step, config, device, length=1 if short else None)


def _plain(model: nn.Module, materials: tuple[ImageTable, PairSet], device: torch.device) -> Block:
    """Plain training with torch as it comes."""
    table, _ = materials
    model = model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = [table.images[:BATCH].to(device).float() / 255, table.label[:BATCH].to(device)]

    def block(steps: int) -> None:
        for _ in range(steps):
            erm_step(model, optimizer, batch, device)

    return block


def noise(channels: int, size: int) -> tuple[ImageTable, PairSet]:
    """A table of noise, and pairs of its images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8 * BATCH, channels, size, size), generator=generator, dtype=torch.uint8)
    label, zero = torch.arange(len(images)) % 2, torch.zeros(len(images), dtype=torch.int64)
    table = ImageTable("noise", images, label, zero, zero, zero, label, ("train",), ("a", "b"), ("all",))
    half = len(images) // 2
    source = torch.stack([torch.arange(half), torch.arange(half, 2 * half)], dim=1)
    return table, PairSet(images[:half], images[half:], label[:half], source, "train", "noise")


def _left_halves(table: ImageTable) -> Tensor:
    """Masks that show the left half of every image."""
    masks = torch.zeros(len(table.images), 1, *table.images.shape[2:], dtype=torch.uint8)
    masks[..., : masks.shape[-1] // 2] = 255
    return masks


def _mnist_cnn() -> nn.Module:
    return build_model("mnist_cnn", channels=2, classes=2)


def _resnet50() -> nn.Module:
    import timm

    model: nn.Module = timm.create_model("resnet50", num_classes=2)
    return model
