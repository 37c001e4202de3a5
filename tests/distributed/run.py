"""One process of a run: `python run.py FOLDER METHOD [SIGNAL RANK STEP]` under torchrun's variables.

It computes in float64, unless it is told to compute in bf16 or to make one step an epoch: then in float32.
A method may be followed by settings, as in `ipg,shard=true,model=small_vit`.

With a signal, the process of that rank sends it to itself after that step; with COLLAPSE in its place the run collapses
there in its first attempt, in every process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.guidance import CollapseError
from ipg.training import loop
from ipg.training.distributed import ProcessLostError, processes
from ipg.training.interrupt import Interrupted, StopRequest
from ipg.training.materials import Materials, gather

STOPPED, LOST = 30, 40
"""How the process ends when it was asked to stop, and when another is gone."""


class Double(nn.Module):
    """A network that computes in float64."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.double()
        self.head = net.head

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images.double())
        return logits


def table() -> ImageTable:
    """130 training images of two classes in two colours, and 31 to validate on."""
    generator = torch.Generator().manual_seed(0)
    n = 161
    label = torch.randint(2, (n,), generator=generator)
    color = torch.where(torch.rand(n, generator=generator) < 0.9, label, 1 - label)
    images = torch.zeros(n, 2, 8, 8, dtype=torch.uint8)
    shape = torch.randint(60, 256, (n, 8, 8), generator=generator, dtype=torch.uint8)
    shape[label == 1, :, :4] //= 2
    images[torch.arange(n), color] = shape
    split = (torch.arange(n) >= 130).long()
    zeros = torch.zeros_like(label)
    return ImageTable(
        "small", images, label, color, split, zeros, label, ("train", "validation"), ("a", "b"), ("red", "green")
    )


def settings(method: str) -> RunConfig:
    """12 iterations an epoch, the last on 9 images; neither batches nor pairs divide evenly among processes."""
    name, *given = method.split(",")
    plain = RunConfig(
        method=name,
        device="cpu",
        epochs=3,
        batch=11,
        pairs=13,
        pair_batch=7,
        held_out_pairs=9,
        every=2,
        margin="0.5x",
    )
    own = [text.partition("=")[::2] for text in given]
    options = {name.removeprefix("option."): value for name, value in own if name.startswith("option.")}
    return RunConfig.from_mapping(
        {name: value for name, value in own if "." not in name} | {"options": options}, base=plain
    )


def materials(config: RunConfig) -> Materials:
    found = gather(config, table=table())
    single = config.precision == "bf16" or config.steps == 1
    return Materials(found.table, found.model if single else Double(found.model), found.pairs, found.held_out)


def main() -> int:
    folder, method, *trouble = sys.argv[1:]
    torch.set_num_threads(1)
    if trouble:
        number, rank, step = getattr(signal, trouble[0], None), trouble[1], int(trouble[2])
        original = loop.Training._between_steps

        def tripped(self: loop.Training, request: StopRequest) -> None:
            if number is None and (self.progress.step, self.progress.restarts) == (step, 0):
                raise CollapseError("collapsed")
            if number is not None and self.progress.step == step and os.environ.get("RANK", "0") == rank:
                os.kill(os.getpid(), number)
            original(self, request)

        loop.Training._between_steps = tripped  # type: ignore[method-assign]
    config = settings(method)
    try:
        with processes("cpu"):
            loop.train(config, materials(config), folder=Path(folder))
    except Interrupted as error:
        print(error)
        return STOPPED
    except ProcessLostError as error:
        print(error)
        return LOST
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # at once: a process group with a member missing has nothing to take leave of
