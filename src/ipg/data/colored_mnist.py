"""ColoredMNIST: digits below five against the others, with noisy labels and a colour that predicts them better.

Arjovsky et al., "Invariant Risk Minimization", 2019 (the task); Gulrajani and Lopez-Paz, "In Search of Lost Domain
Generalization", ICLR 2021 (the protocol that the IPG paper follows). With e the chance of an environment that colour
and label part, 0.1, 0.2 and 0.9 in environments 0, 1 and 2,

    y = [digit < 5] XOR Bernoulli(0.25)        c = y XOR Bernoulli(e)        the digit stands in channel c

so shape gives 75 % everywhere, colour 90, 80 and 10 %. Protocols:

- `paper`: all 70,000 digits at 28x28, dealt to the environments in turn, a fifth of each held out. `train` is the rest
  of environments 0 and 1 (37,335 images), `validation` their hold-outs (2 x 4,666), `search` the hold-out of
  environment 2 (4,666; for hyper-parameters alone), `test` the rest of it (18,667).
- `clean`: the same without label noise.
- `train_noise`: the same, colour from the clean label and labels flipped afterwards, in all splits but `test`.
  With `test` another environment may take the place of environment 2, which then is among those of training:
  DomainBed's figures are means over the three.
- `irm`: Arjovsky's. Of the 60,000 training digits the first 50,000, shuffled, are `train` (even places environment 1,
  odd ones 0) and the last 10,000 `test` (environment 2), at 14x14 by every second pixel. MNIST's own 10,000 test
  digits, which the authors leave unused, are `search`, coloured as `test` is; `validation` is there and empty.
- `dair`: that of Huang et al., "Robustness through Data Augmentation Loss Consistency", TMLR 2022. Of the 60,000
  training digits the first 20,000 are `train` (environment 1 alone) and the last 20,000 `test` (environment 2), at
  28x28, with a third channel that is black. The 20,000 between, which their code leaves unused, are `search`, coloured
  as `test` is; `validation` is there and empty.

Differs from DomainBed: one seed draws everything, where DomainBed draws the hold-out from a hash of seed and
environment; and the hold-out is the first fifth of an environment, whose order is random already.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.data.coloring import COLORS, chance, colorize, halve
from ipg.data.mnist import Digits, read
from ipg.data.remembering import recalled
from ipg.data.table import ImageTable

__all__ = ["Protocol", "load"]

Protocol = Literal["paper", "irm", "clean", "train_noise", "dair"]

ENVIRONMENTS = (0.1, 0.2, 0.9)
"""The chance e that colour and label differ."""
LABEL_NOISE = 0.25
_NAMES: dict[Protocol, str] = {
    "paper": "colored_mnist",
    "irm": "colored_mnist_irm",
    "clean": "colored_mnist_clean",
    "train_noise": "colored_mnist_train_noise",
    "dair": "colored_mnist_dair",
}


def _digits(place: str | PathLike[str] | None) -> Digits:
    """MNIST, which a study whose trials have seeds of their own reads once."""
    return recalled(("mnist", place), lambda: read(place), lambda found: found.images.nbytes)


class _Layout(NamedTuple):
    """Which digits there are, and which split and environment each falls into."""

    rows: Tensor  # (N,)
    split: Tensor  # (N,)
    environment: Tensor  # (N,)
    splits: tuple[str, ...]
    joined: int = 0
    """How many of the last rows are drawn after all others, which have the same bits with and without them."""


def load(
    mnist: Digits | str | PathLike[str] | None = None,
    *,
    protocol: Protocol = "paper",
    size: int | None = None,
    seed: int = 0,
    test: int | None = None,
) -> ImageTable:
    """Load ColoredMNIST.

    Row i is the i-th digit of MNIST whatever the seed (of `dair` those of `train` come first, then those of `test` and
    of `search`). Its place in the splits, whether its label is flipped and its colour are drawn from the seed, in this
    order: `paper`, `clean` and `train_noise` of a seed have the same splits.

    Args:
        mnist: the digits, or where they lie (`ipg.data.mnist.read`; default `ipg.data.mnist.default_path()`).
        protocol: see above.
        size: 28 or 14. Default: the protocol's own, 14 for `irm` and else 28. The others shrink to 14 by 2x2 means.
        seed: of splits, label noise and colours.
        test: the environment that is tested on, for `paper` alone; 2 if not given.

    Returns:
        The table; `content` is the digit.

    Raises:
        DataError: MNIST is missing or corrupt.
    """
    if protocol not in get_args(Protocol):
        raise ValueError(f"unknown protocol {protocol!r} of ColoredMNIST; it has {', '.join(get_args(Protocol))}")
    if size not in (None, 14, 28):
        raise ValueError(f"size={size} is out of range: ColoredMNIST comes in 14 and 28 pixels")
    if test not in ((None, 0, 1, 2) if protocol == "paper" else (None,)):
        raise ValueError(f"test={test} is out of range: 0, 1 or 2 with protocol='paper', and none with the others")
    digits = mnist if isinstance(mnist, Digits) else _digits(mnist)
    generator = torch.Generator().manual_seed(seed)
    if protocol == "irm":
        layout = _arjovsky(digits.train, len(digits.labels), generator)
    elif protocol == "dair":
        layout = _huang(digits.train)
    else:
        layout = _domainbed(len(digits.labels), generator, 2 if test is None else test)

    rows, split, environment, splits, joined = layout
    digit = digits.labels[rows]
    clean = digit < 5
    wrong, parted = _noise(environment, 0.0 if protocol == "clean" else LABEL_NOISE, joined, generator)
    label = clean ^ wrong
    color = label ^ parted
    if protocol == "train_noise":
        color = clean ^ parted
        label = torch.where(split == splits.index("test"), clean, label)
    images = colorize(_resize(digits.images[rows], protocol, size), color.long())
    return ImageTable(
        name=_NAMES[protocol] if test is None else f"{_NAMES[protocol]}_test{test}",
        images=F.pad(images, (0, 0, 0, 0, 0, 1)) if protocol == "dair" else images,
        label=label.long(),
        attribute=color.long(),
        split=split,
        environment=environment,
        content=digit,
        splits=splits,
        classes=("5 to 9", "0 to 4"),
        attributes=COLORS,
    )


def _noise(environment: Tensor, noise: float, joined: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which labels are wrong, and where colour and label part; the last `joined` rows are drawn after the others."""
    first = len(environment) - joined
    drawn = [
        (chance(noise, len(part), generator), chance(torch.tensor(ENVIRONMENTS)[part], len(part), generator))
        for part in (environment[:first], environment[first:])
    ]
    wrong, parted = zip(*drawn, strict=True)
    return torch.cat(wrong), torch.cat(parted)


def _domainbed(n: int, generator: torch.Generator, test: int) -> _Layout:
    place = torch.randperm(n, generator=generator)  # (N,): where a digit stands in the shuffled row
    environment = place % 3
    held = place // 3 < (environment.bincount(minlength=3) // 5)[environment]  # the first fifth of an environment
    split = torch.where(environment != test, held.long(), 3 - held.long())
    return _Layout(torch.arange(n), split, environment, ("train", "validation", "search", "test"))


def _arjovsky(n: int, total: int, generator: torch.Generator) -> _Layout:
    """The first five sixths of MNIST's training part (50,000) for training, the rest of it for testing.

    MNIST's test part, to search with, joined later, at the end.
    """
    train = n - n // 6
    environment = torch.full((total,), 2)
    environment[:train] = 1 - torch.randperm(train, generator=generator) % 2
    split = torch.tensor([0, 3, 2]).repeat_interleave(torch.tensor([train, n - train, total - n]))
    return _Layout(torch.arange(total), split, environment, ("train", "validation", "search", "test"), total - n)


def _huang(n: int) -> _Layout:
    """The first third of MNIST's training part (20,000) for training, the last for testing, the one between to search.

    That joined later, at the end.
    """
    third = n // 3
    rows = torch.cat([torch.arange(third), torch.arange(n - third, n), torch.arange(third, n - third)])
    split = torch.tensor([0, 3, 2]).repeat_interleave(torch.tensor([third, third, n - 2 * third]))
    return _Layout(rows, split, 1 + (split > 0).long(), ("train", "validation", "search", "test"), n - 2 * third)


def _resize(grey: Tensor, protocol: Protocol, size: int | None) -> Tensor:
    if protocol == "irm":
        return grey if size == 28 else grey[:, ::2, ::2]
    return halve(grey) if size == 14 else grey
