"""A small problem of numbers in place of images, in double precision, for methods to work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.guidance import Pairs
from ipg.methods import Method, Setup, method_class


@pytest.fixture(autouse=True)
def _quiet(one_thread: None, own_random_state: None) -> None:
    """One thread and one seed for every test here."""


class Toy:
    """Batches and pairs that are functions of their number; the label hides in one column, the shortcut in another."""

    INPUTS = 6

    def network(self, *, dtype: torch.dtype = torch.float64) -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(self.INPUTS, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)

    def batch(self, number: int, *, n: int = 9, dtype: torch.dtype = torch.float64) -> Batch:
        generator = torch.Generator().manual_seed(number)
        label = torch.randint(3, (n,), generator=generator)
        image = torch.randn(n, self.INPUTS, generator=generator, dtype=dtype)
        image[:, 0] += label
        image[:, -1] = 2.0 * label - 2
        return Batch(image, label, label, torch.zeros_like(label), torch.arange(n))

    def pairs(self, number: int, *, n: int = 6, shift: float = 2.0, dtype: torch.dtype = torch.float64) -> Pairs:
        generator = torch.Generator().manual_seed(1_000 + number)
        first = torch.randn(n, self.INPUTS, generator=generator, dtype=dtype)
        second = first.clone()
        second[:, -1] += shift
        return Pairs(first, second, torch.arange(n) % 3)

    def method(self, name: str, model: nn.Module, **settings: Any) -> Method:
        """The method of that name on `model`, trained by plain gradient descent with a rate of 0.1."""
        rate = settings.pop("rate", 0.1)
        optimizer = settings.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=rate)
        criterion = settings.pop("criterion", None) or nn.CrossEntropyLoss()
        pairs = settings.pop("pairs_from", None) or Drawn(self)
        config = RunConfig(method=name, **{"every": 1, "margin": "0.7", **settings})
        return method_class(name)(Setup(model, optimizer, criterion, config, pairs))


class Drawn:
    """A sampler that counts its draws."""

    def __init__(self, toy: Toy, **options: Any) -> None:
        self.toy, self.options, self.count = toy, options, 0

    def draw(self) -> Pairs:
        self.count += 1
        return self.toy.pairs(self.count - 1, **self.options)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def drawn(toy: Toy) -> Callable[..., Drawn]:
    """Makes samplers of the toy's pairs."""
    return lambda **options: Drawn(toy, **options)
