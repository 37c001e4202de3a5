"""A small problem of numbers in place of images, in double precision, for methods to work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from campaign.bars import halves
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.guidance import Pairs
from ipg.methods import Method, Setup, method_class
from ipg.training.loop import Outcome, train
from ipg.training.materials import gather


@pytest.fixture(autouse=True)
def _quiet(one_thread: None, own_random_state: None) -> None:
    """One thread and one seed for every test here."""


class Toy:
    """Batches and pairs that are functions of their number; the label hides in one column, the shortcut in another."""

    INPUTS = 6

    def network(self, *, dtype: torch.dtype = torch.float64) -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(self.INPUTS, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)

    def mirror(self) -> nn.Linear:
        """A network of two inputs whose logits, and features, are its inputs: losses can be written down by hand."""
        model = nn.Linear(2, 2).double()
        with torch.no_grad():
            model.weight.copy_(torch.eye(2))
            model.bias.zero_()
        return model

    def batch(self, number: int, *, n: int = 9, dtype: torch.dtype = torch.float64) -> Batch:
        generator = torch.Generator().manual_seed(number)
        label = torch.randint(3, (n,), generator=generator)
        image = torch.randn(n, self.INPUTS, generator=generator, dtype=dtype)
        image[:, 0] += label
        image[:, -1] = 2.0 * label - 2
        return Batch(image, label, label, torch.zeros_like(label), torch.arange(n))

    def table(self, *, n: int = 12) -> ImageTable:
        """What the batches' rows are drawn from: three labels, two attributes, two environments."""
        row = torch.arange(n)
        return ImageTable(
            name="toy",
            images=torch.zeros(n, 2, 1, 3, dtype=torch.uint8),
            label=row % 3,
            attribute=row // 3 % 2,
            split=torch.zeros_like(row),
            environment=row % 2,
            content=row % 3,
            splits=("train",),
            classes=("a", "b", "c"),
            attributes=("left", "right"),
        )

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
        table = settings.pop("table", None) or self.table()
        config = RunConfig(method=name, **{"every": 1, "margin": "0.7", **settings})
        setup = Setup(model, optimizer, criterion, config, pairs, None, table, _like(optimizer), table)
        return method_class(name)(setup)


def _like(optimizer: torch.optim.Optimizer) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Makes optimizers of the same kind and settings."""
    return lambda model: type(optimizer)(model.parameters(), **optimizer.defaults)


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


@pytest.fixture
def make_halves() -> Callable[[ImageTable], Tensor]:
    return halves


class WaitedError(Exception):
    """Something has asked the device for a value."""


class NoWaiting(TorchDispatchMode):
    """Inside, whatever would make the host wait for a GPU raises `WaitedError`."""

    READS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "bincount")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in {"index", "index_put", "index_put_"} and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in self.READS or masked:
            raise WaitedError(name)
        return func(*args, **kwargs or {})


@pytest.fixture
def no_waiting() -> NoWaiting:
    """A context in which nothing may ask the device for a value."""
    return NoWaiting()


@pytest.fixture
def one_epoch(make_table: Callable[..., ImageTable]) -> Callable[..., Outcome]:
    """Trains a small network for an epoch of four batches by a method, through the one loop."""

    def run(name: str, *, table: ImageTable | None = None, **changes: Any) -> Outcome:
        small: dict[str, Any] = {"epochs": 1, "batch": 32, "pairs": 12, "pair_batch": 5, "held_out_pairs": 6}
        config = RunConfig(method=name, **{"device": "cpu"} | small | changes)
        table = make_table() if table is None else table
        masks = halves(table) if method_class(name).needs & {"masks", "attention"} else None
        return train(config, gather(config, table=table, masks=masks))

    return run


@pytest.fixture
def descends(toy: Toy) -> Callable[..., list[float]]:
    """Checks a method against gradient descent on cross-entropy plus a penalty that is written out by the test."""

    def check(name: str, naive: Callable[..., Tensor], /, *, weight: float, **options: Any) -> list[float]:
        """`naive` is given features (B, D), logits (B, K), the batch and the head; returns the penalties."""
        names = torch.tensor([7, 3, 4])
        table = replace(toy.table(), environment=names[torch.arange(12) % 3])
        model, twin = toy.network(), toy.network()
        method = toy.method(name, model, table=table, options={"weight": weight, **options})
        parameters = list(twin.parameters())
        found = []
        for number, present in enumerate([(0, 1, 2), (2, 0), (1, 1, 1, 0), (0, 1, 2)]):
            batch = toy.batch(number, n=10)
            environment = names[torch.tensor(present)][torch.arange(10) % len(present)]
            batch = batch._replace(environment=environment)
            reported = method.step(batch)
            features = twin[:-1](batch.image)
            logits = twin[-1](features)
            extra = naive(features, logits, batch, twin[-1])
            loss = nn.functional.cross_entropy(logits, batch.label) + weight * extra
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.1 * gradient
            assert reported["penalty"].item() == pytest.approx(extra.item(), rel=1e-9, abs=1e-13)
            found.append(extra.item())
        for one, other in zip(model.parameters(), parameters, strict=True):
            torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-9)
        return found

    return check
