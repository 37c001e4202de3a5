"""What a training method is: it is given a batch, makes its updates, and returns device tensors."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.evaluation.groups import logits_of
from ipg.guidance import DrawsPairs
from ipg.rationale import full_precision

__all__ = ["Method", "NoOptions", "Setup", "parse_options"]

Need = Literal["pairs"]


@dataclass(frozen=True)
class Setup:
    """What a method works with."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    criterion: Callable[[Tensor, Tensor], Tensor]
    config: RunConfig
    pairs: DrawsPairs | None = None
    autocast: torch.dtype | None = None

    def task_loss(self, batch: Batch) -> Tensor:
        """The cross-entropy of a task batch."""
        device = batch.image.device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            logits = logits_of(self.model(batch.image))
        return self.criterion(full_precision(logits), batch.label)


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Method:
    """Base of all methods. A subclass says what it needs and how one iteration goes.

    A step must not wait for the device (no `.item()`, no `bool(tensor)`): it may be captured as a CUDA graph, one for
    each value of `due`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    Options: ClassVar[type] = NoOptions

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.options = parse_options(type(self), setup.config.options)
        if "pairs" in self.needs and setup.pairs is None:
            raise ValueError(
                f"method {self.name!r} is guided by pairs and there are none: give --pairs a number above 0, or "
                f"train with --method erm"
            )

    @staticmethod
    def transform(images: Tensor) -> Tensor:
        """What becomes of all images, training, test and pairs alike, before anything else."""
        return images

    @property
    def due(self) -> bool:
        """Whether the next step draws pairs; known without asking the device."""
        return False

    @property
    def iteration(self) -> int:
        """The host's count of steps, where the method keeps one; replaying a captured step sets it."""
        return 0

    @iteration.setter
    def iteration(self, value: int) -> None:
        del value

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One iteration, updates included; returns scalars on the device, to be averaged over the epoch."""
        raise TypeError(f"{type(self).__name__} does not say how to step")

    def check(self) -> None:
        """Raise if training has gone wrong; called when somebody logs, may wait for the device."""

    def close(self) -> None:
        """Leave the network as a plain network, without hooks; called when training ends."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep besides model and optimizer."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        del state


def parse_options(method: type[Method], given: Mapping[str, Any]) -> Any:
    """The method's `Options` from names and values; unknown names and impossible values are all named at once."""
    types = get_type_hints(method.Options)
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in types:
            near = difflib.get_close_matches(name, types, n=1)
            known = f"did you mean {near[0]}?" if near else f"it has {', '.join(types) or 'none'}"
            problems.append(f"method {method.name!r} has no option {name!r}; {known}")
        elif value not in get_args(types[name]):  # options so far are choices between words
            problems.append(f"option {name}={value!r}: expected one of {', '.join(get_args(types[name]))}")
        else:
            values[name] = value
    if problems:
        raise ValueError("; ".join(problems))
    return method.Options(**values)


def option_defaults(method: type[Method]) -> dict[str, Any]:
    """The method's own options with their defaults, for result rows and help."""
    return {field.name: field.default for field in dataclasses.fields(method.Options)}
