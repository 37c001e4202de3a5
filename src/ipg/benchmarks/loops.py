"""Ours against plain PyTorch loops that compute the same (`plain.py`), in images of the task a second.

The data is ColoredMNIST where the environment variable IPG_MNIST says where MNIST is, and otherwise the embedded
coloured fashion images, which have the same shape. The plain loops draw batches in this process and, for plain
training, also in two worker processes, which may then use cores that ours does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from ipg.benchmarks import plain
from ipg.benchmarks.iterations import Block, iterations, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.benchmarks.steps import LEAST_SECONDS, SIZES
from ipg.config import RunConfig
from ipg.data.load import load
from ipg.models import ConvNet
from ipg.training.device import numerics
from ipg.training.materials import Materials, gather

__all__ = ["measure"]

KINDS = ("tensors", "tensors, 2 workers", "pictures, 2 workers")
"""What the plain loops draw from, and by how many worker processes."""
QUICK = ("tensors", "pictures")


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Images a second of plain and of guided training, ours and theirs."""
    data = "colored_mnist" if os.environ.get("IPG_MNIST") else "colored_fashion_noisy"
    batch = 8 if quick else 128
    for model, size in SIZES.items():
        table = load(data, size=size)
        config = RunConfig(
            data=data, model=model, size=size, batch=batch, pairs=8 * batch, pair_batch=batch // 4, every=1,
            learning_rate=1e-3, schedule="constant", alpha=0.1, margin="0.1", held_out_pairs=0, precision="fp32",
            device=device.type,
        )  # fmt: skip
        name = f"{data} {model}"
        theirs = {f"{name} plain erm, {kind}": kind for kind in (QUICK if quick else KINDS)}
        with numerics(config, device):
            blocks: dict[str, Block] = {}
            for method in ("erm", "ipg"):
                chosen = config.with_changes(method=method)
                blocks[f"{name} ours {method}"] = iterations(chosen, gather(chosen, table=table), device)
            materials = gather(config, table=table)
            blocks |= {case: _erm(config, materials, kind, device) for case, kind in theirs.items()}
            blocks[f"{name} plain ipg, tensors"] = _ipg(config, materials, device)
            for block in blocks.values():
                block(4 if device.type == "cpu" else 40)
            steps = 4 if quick else steps_for(blocks[f"{name} ours erm"], device, seconds=LEAST_SECONDS)
            work = {case: partial(_rate, block, steps, batch, device) for case, block in blocks.items()}
            rates = take_turns(work, 1 if quick else 6)
        baselines: dict[str, str | tuple[str, ...]] = {
            f"{name} ours erm": tuple(theirs),
            f"{name} ours ipg": f"{name} plain ipg, tensors",
        }
        yield from compare("loops", rates, unit="images/s", baselines=baselines)


def _rate(block: Block, steps: int, batch: int, device: torch.device) -> float:
    return 1e3 * batch / per_step(block, steps, device)


def _erm(config: RunConfig, materials: Materials, kind: str, device: torch.device) -> Block:
    """Plain training on the same images, drawn as `kind` says."""
    table = materials.table.part("train")
    form, _, rest = kind.partition(", ")
    data = plain.Pictures(table.images, table.label) if form == "pictures" else _tensors(table.label, table.images)
    batches = plain.draw(data, batch=config.batch, workers=int(rest.split()[0]) if rest else 0)
    model, optimizer = _network(config, materials, device)
    return _repeated(lambda: plain.erm_step(model, optimizer, next(batches), device))


def _ipg(config: RunConfig, materials: Materials, device: torch.device) -> Block:
    """Guided training on the same images and pairs."""
    table, pairs = materials.table.part("train"), materials.pairs
    if pairs is None:
        raise ValueError("guided training needs pairs and there are none")
    batches = plain.draw(_tensors(table.label, table.images), batch=config.batch, workers=0)
    drawn = plain.draw(_tensors(pairs.label, pairs.first, pairs.second), batch=config.pair_batch, workers=0)
    model, optimizer = _network(config, materials, device)
    settings = {"alpha": config.alpha, "tau": config.tau, "margin": float(config.margin), "floor": config.floor}
    return _repeated(lambda: plain.ipg_step(model, optimizer, next(batches), next(drawn), device, **settings))


def _tensors(label: Tensor, *images: Tensor) -> TensorDataset:
    return TensorDataset(*(part.float() / 255 for part in images), label)


def _network(config: RunConfig, materials: Materials, device: torch.device) -> tuple[ConvNet, torch.optim.Optimizer]:
    """A network of its own, and its optimizer."""
    model = deepcopy(materials.model).to(device)
    if not isinstance(model, ConvNet):
        raise ValueError(f"the plain loops train a ConvNet, not a {type(model).__name__}")
    model.train()
    return model, torch.optim.Adam(model.parameters(), lr=config.learning_rate)


def _repeated(step: Callable[[], object]) -> Block:
    def block(steps: int) -> None:
        for _ in range(steps):
            step()

    return block
