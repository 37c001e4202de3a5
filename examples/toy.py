"""The small world the examples share: bars with a telltale bright patch.

The task is to tell horizontal bars (class 0) from vertical ones (class 1) in noise. In every *training* image a bright
patch sits in the left corner for class 0 and in the right corner for class 1, so a network can be right without ever
looking at the bars. In the *test* images the patch has moved to the other corner: whoever leaned on it is now wrong.

An invariance pair is one image twice, the patch in either corner. Ten such pairs of each class are enough here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import ipg

SIZE = 16
PATCH = 4


@dataclass(frozen=True)
class Toy:
    """Labelled images whose patch gives the label away, the same task with the patch moved, and a few pairs."""

    x: Tensor  # (n, 1, 16, 16)
    y: Tensor  # (n,)
    shifted_x: Tensor
    shifted_y: Tensor
    pairs: ipg.Pairs


def make_toy(train: int = 1024, test: int = 512, pairs_per_class: int = 10, seed: int = 0) -> Toy:
    generator = torch.Generator().manual_seed(seed)
    y, shifted_y = torch.arange(train) % 2, torch.arange(test) % 2
    bars, shifted_bars = draw_bars(y, generator), draw_bars(shifted_y, generator)

    # the pairs come from the training images: we know where the shortcut is, so we can move it and nothing else
    rows = torch.arange(2 * pairs_per_class)  # labels alternate, so both classes are in equal parts
    pairs = ipg.Pairs(
        first=with_patch(bars[rows], right=y[rows]),
        second=with_patch(bars[rows], right=1 - y[rows]),
        label=y[rows],
    )
    return Toy(
        x=with_patch(bars, right=y),
        y=y,
        shifted_x=with_patch(shifted_bars, right=1 - shifted_y),
        shifted_y=shifted_y,
        pairs=pairs,
    )


def draw_bars(y: Tensor, generator: torch.Generator) -> Tensor:
    """Bars of random phase, horizontal where y is 0 and vertical where it is 1, under noise."""
    n = len(y)
    phase = torch.rand(n, 1, 1, generator=generator)
    along = torch.arange(SIZE) / 4
    horizontal = torch.sin(2 * torch.pi * (along[:, None] + phase)).expand(n, SIZE, SIZE)
    bars = torch.where(y[:, None, None] == 1, horizontal.transpose(1, 2), horizontal)
    noise = torch.randn(n, SIZE, SIZE, generator=generator)
    return (0.5 * bars + 0.5 * noise)[:, None]  # (n, 1, 16, 16)


def with_patch(bars: Tensor, right: Tensor) -> Tensor:
    """The images with a bright patch in the upper right corner where `right` is 1, else in the upper left."""
    images = bars.clone()
    images[right == 0, :, :PATCH, :PATCH] = 3.0
    images[right == 1, :, :PATCH, -PATCH:] = 3.0
    return images


def small_cnn(seed: int = 0) -> nn.Sequential:
    """A user's network like any other; all the guidance asks for is that it ends in a linear layer."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),  # coarse, but left and right stay apart: the shortcut can be seen
        nn.Flatten(),
        nn.Linear(32 * 4, 2),
    )


def batches(toy: Toy, epochs: int, batch_size: int = 64, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """All batches of all epochs, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (toy.x[rows], toy.y[rows])
        for _ in range(epochs)
        for rows in torch.split(torch.randperm(len(toy.y), generator=generator), batch_size)
    ]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return float((model(x).argmax(dim=1) == y).float().mean())


def show(name: str, model: nn.Module, toy: Toy) -> None:
    """Print one line: how well the model does where the shortcut holds, and where it misleads."""
    as_trained, shifted = accuracy(model, toy.x, toy.y), accuracy(model, toy.shifted_x, toy.shifted_y)
    print(f"{name:7} training images {as_trained:6.1%}   patch moved {shifted:6.1%}")
