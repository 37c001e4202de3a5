"""Coloured fashion: the embedded data set, 20,000 images of Fashion-MNIST whose colour is a shortcut to the label.

Label 1 is footwear or a bag, 0 a garment. An image stands in one of two channels (red, green), and the channel c
agrees with the label y with a probability of its own in every split:

| protocol | labels flipped | agreement in training and validation | in test |
|---|---|---|---|
| `perfect` | none | 1: colour *is* the label | 0.1 |
| `noisy` | 25 %, in every split; colour follows the flipped label | 0.85 | 0.1 |

Validation is drawn like training: who has a perfect shortcut has no image that contradicts it, so half of the groups
have no validation image under `perfect`, and models are selected on held-out pairs in place of the worst group.

The images are those of Zalando SE (MIT licence); `tools/embed_fashion.py` made the two files beside this module.
"""

from __future__ import annotations

import hashlib
import io
import json
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ipg.data.coloring import COLORS, chance, colorize, halve
from ipg.data.errors import DataError
from ipg.data.table import ImageTable

__all__ = ["Protocol", "load"]

Protocol = Literal["perfect", "noisy"]

SPRITE: Traversable = resources.files("ipg.data") / "fashion_mnist_20k.png"
FACTS: Traversable = resources.files("ipg.data") / "fashion_mnist_20k.json"
SIZES = {"train": 12_000, "validation": 2_000, "test": 6_000}
POSITIVE = (5, 7, 8, 9)
"""Sandal, sneaker, bag, ankle boot."""
_NAMES: dict[Protocol, str] = {"perfect": "colored_fashion", "noisy": "colored_fashion_noisy"}
_NOISE: dict[Protocol, float] = {"perfect": 0.0, "noisy": 0.25}
_DISAGREEMENT: dict[Protocol, tuple[float, float, float]] = {
    "perfect": (0.0, 0.0, 0.9),
    "noisy": (0.15, 0.15, 0.9),
}


def load(*, protocol: Protocol = "perfect", size: int = 14, seed: int = 0) -> ImageTable:
    """Load coloured fashion.

    Row i is the i-th embedded image whatever the seed. Which split it falls into, whether its label is flipped and
    its colour are drawn from the seed, in this order, so that both protocols of a seed have the same splits.

    Args:
        protocol: `perfect` or `noisy`, see above.
        size: 28, as published, or 14, the means of 2x2 pixels.
        seed: of splits, label noise and colours.

    Returns:
        12,000 training, 2,000 validation and 6,000 test images of 2 x size x size. `content` is the kind of garment,
        0 to 9 as in Fashion-MNIST.

    Raises:
        DataError: the embedded files are missing or corrupt.
    """
    if protocol not in get_args(Protocol):
        raise ValueError(f"unknown protocol {protocol!r} of coloured fashion; it has {', '.join(get_args(Protocol))}")
    if size not in (14, 28):
        raise ValueError(f"size={size} is out of range: coloured fashion comes in 14 and 28 pixels")
    grey, kind = _read()
    generator = torch.Generator().manual_seed(seed)
    split = torch.empty_like(kind)
    split[torch.randperm(len(kind), generator=generator)] = torch.repeat_interleave(torch.tensor([*SIZES.values()]))
    label = torch.isin(kind, torch.tensor(POSITIVE)) ^ chance(_NOISE[protocol], len(kind), generator)
    color = label ^ chance(torch.tensor(_DISAGREEMENT[protocol])[split], len(kind), generator)
    return ImageTable(
        name=_NAMES[protocol],
        images=colorize(halve(grey) if size == 14 else grey, color.long()),
        label=label.long(),
        attribute=color.long(),
        split=split,
        environment=torch.zeros_like(kind),
        content=kind,
        splits=tuple(SIZES),
        classes=("garment", "footwear or bag"),
        attributes=COLORS,
    )


def _read() -> tuple[Tensor, Tensor]:
    """The embedded images, (20000, 28, 28) of uint8, and their kinds, (20000,)."""
    try:
        facts = json.loads(FACTS.read_text(encoding="utf-8"))
        png = SPRITE.read_bytes()
        kind = torch.tensor([int(digit) for digit in facts["labels"]])
        side, columns, digest = int(facts["side"]), int(facts["columns"]), facts["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the embedded images are missing or corrupt ({FACTS.name}: {error}); install ipg again"
        ) from error
    if hashlib.sha256(png).hexdigest() != digest or len(kind) != sum(SIZES.values()):
        raise DataError(f"{SPRITE.name} is corrupt: its checksum is not the one in {FACTS.name}; install ipg again")
    with Image.open(io.BytesIO(png)) as sprite:
        pixels = torch.from_numpy(np.array(sprite))  # (rows * side, columns * side)
    tiles = pixels.view(-1, side, columns, side).transpose(1, 2)  # (rows, columns, side, side)
    return tiles.reshape(-1, side, side), kind
