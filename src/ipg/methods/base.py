"""What a training method is: it is given a batch, makes its updates, and returns device tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.collectives import find_peers
from ipg.config import RunConfig
from ipg.data.batches import Batch, Sampling
from ipg.data.table import ImageTable
from ipg.evaluation.groups import logits_of
from ipg.guidance import DrawsPairs
from ipg.methods.options import parse_options
from ipg.methods.space import Range
from ipg.pairs.pairset import PairSet
from ipg.rationale import full_precision

__all__ = ["NEEDS", "Method", "Need", "NoOptions", "Setup"]

Need = Literal["pairs", "environments", "groups", "validation groups", "masks", "attention", "shortcut rule"]

NEEDS: dict[Need, str] = {
    "pairs": "invariance pairs",
    "environments": "training images of two environments or more",
    "groups": "training images whose attribute is known",
    "validation groups": "validation images whose attribute is known",
    "masks": "masks of the objects in training images",
    "attention": "maps of where CLIP looks in training images",
    "shortcut rule": "a rule that changes the shortcut in every image, or takes it out",
}
"""What a method may need beside labelled training images, in words."""


@dataclass(frozen=True)
class Setup:
    """What a method works with."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    criterion: Callable[[Tensor, Tensor], Tensor]
    config: RunConfig
    pairs: DrawsPairs | None = None
    autocast: torch.dtype | None = None
    table: ImageTable | None = None
    """The training images, for methods that look at what there is before they begin."""
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    """Makes an optimizer like the run's own, for methods that train a second network."""
    validation: ImageTable | None = None
    """The validation images, for methods that are fitted to them."""
    pair_set: PairSet | None = None
    """All training pairs, for methods that look at them before they begin."""
    masks: Tensor | None = None
    """Where every training image shows what counts, (N, 1, H, W) of uint8, for methods that need masks or attention."""
    make_network: Callable[[], nn.Module] | None = None
    """Makes a network as the run's own was made, from torch's default generator, for methods that train a second one;
    None where it is not known how."""

    def logits(self, images: Tensor) -> Tensor:
        """What the network says of `images`, (B, K), in single precision or better."""
        with torch.autocast(images.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            logits = logits_of(self.model(images))
        return full_precision(logits)

    def task_loss(self, batch: Batch) -> Tensor:
        """The cross-entropy of a task batch, weighted by class if the configuration says so."""
        return self.criterion(self.logits(batch.image), batch.label)

    def losses(self, batch: Batch) -> Tensor:
        """The cross-entropy of every image of a task batch, without class weights, (B,)."""
        return F.cross_entropy(self.logits(batch.image), batch.label, reduction="none")


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Method:
    """Base of all methods. A subclass says what it needs and how one iteration goes.

    A step must not wait for the device (no `.item()`, no `bool(tensor)`): it may be captured as a CUDA graph, one for
    each value of `due` and each length of a batch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    Options: ClassVar[type] = NoOptions
    weighs_classes: ClassVar[bool] = True
    """Whether its loss is weighted by class where the run says so."""
    refits: ClassVar[bool] = False
    """Whether `refit` changes the network once training is over."""
    whole: ClassVar[str] = ""
    """Why each process has to hold all of the network, where it has to; several of a method that says nothing may share
    one (`--shard`)."""
    alone: ClassVar[str] = ""
    """What it does that only a process alone can do, where it does such a thing: no other trains with it."""
    compiles: ClassVar[bool] = True
    """Whether a step may run through a compiled network, which has no gradients of gradients."""
    space: ClassVar[Mapping[str, Range]] = {}
    """What a search may try, by the name of an option or of a setting of the run."""
    cost: ClassVar[str] = "1"
    """Work of an iteration as a multiple of plain training's, by passes through the network.

    B_D are the task images, B_I the pairs, k is `every` and E the number of environments. What only some options cost
    stands behind a semicolon.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.options = parse_options(type(self), setup.config.options)
        if self.alone and find_peers(setup.model, "auto").size > 1:
            raise ValueError(f"method {self.name!r} {self.alone}: train it in one process, without torchrun")
        if "pairs" in self.needs and setup.pairs is None:
            raise ValueError(
                f"method {self.name!r} is guided by pairs and there are none: give --pairs a number above 0, or "
                f"train with --method erm"
            )
        if "environments" in self.needs and _values(setup.table, "environment") < 2:
            raise ValueError(
                f"method {self.name!r} needs {NEEDS['environments']}, and these are of one: give the table a column "
                f"environment, or take a method that needs none (`ipg methods`)"
            )
        if "groups" in self.needs and _values(setup.table, "attribute") < 2:
            raise ValueError(
                f"method {self.name!r} needs {NEEDS['groups']}, and here all images have the same or none: give the "
                f"table a column attribute, or take a method that needs none (`ipg methods`)"
            )
        if "validation groups" in self.needs and _values(setup.validation, "attribute") < 2:
            raise ValueError(
                f"method {self.name!r} needs {NEEDS['validation groups']}, and there are none: give the table a column "
                f"attribute and a split validation, or take a method that needs neither (`ipg methods`)"
            )

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> frozenset[Need]:
        """What it uses beside labelled training images: what it needs, and what some of its options ask for."""
        del options
        return cls.needs

    @classmethod
    def remark(cls, config: RunConfig, table: ImageTable) -> str | None:
        """What to know of a run on `table` before it begins, in a sentence; nothing by default."""
        del config, table
        return None

    @staticmethod
    def transform(images: Tensor) -> Tensor:
        """What becomes of all images, training, test and pairs alike, before anything else."""
        return images

    @classmethod
    def sampling(cls, table: ImageTable, options: Any, *, seed: int) -> Sampling:
        """Which training images a pass draws, and how often; all of them once by default."""
        del table, options, seed
        return Sampling()

    @classmethod
    def regions(cls, config: RunConfig, table: ImageTable) -> Tensor | None:
        """Where every training image of `table` shows what counts, (n, 1, H, W) of uint8; nothing by default."""
        del config, table
        return None

    @classmethod
    def first_stage(cls, config: RunConfig) -> RunConfig | None:
        """The run that comes before this one, on the same images with a network of its own; none by default."""
        del config
        return None

    @classmethod
    def learn(cls, first: nn.Module, table: ImageTable, options: Any, *, autocast: torch.dtype | None) -> Sampling:
        """Which training images a pass draws, from what the network of the first stage makes of them."""
        raise TypeError(f"{cls.__name__} has a first stage and does not say what it learns from it")

    @property
    def due(self) -> bool:
        """Whether the next step draws pairs; known without asking the device."""
        return False

    @property
    def iteration(self) -> int:
        """The host's count of steps, where the method keeps one; capturing a step sets it back."""
        return 0

    @iteration.setter
    def iteration(self, value: int) -> None:
        del value

    def replayed(self) -> None:
        """The host's part of a step that a captured graph has made."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One iteration, updates included; returns scalars on the device, to be averaged over the epoch."""
        raise TypeError(f"{type(self).__name__} does not say how to step")

    def refit(self, model: nn.Module, validation: ImageTable) -> None:
        """Change the network of the kept epoch once training is over; the result is what the run ends with."""
        raise TypeError(f"{type(self).__name__} does not say how to refit")

    def check(self) -> None:
        """Raise if training has gone wrong; called every few dozen iterations, may wait for the device."""

    def close(self) -> None:
        """Leave the network as a plain network, without hooks; called when training ends."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep besides model and optimizer."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        del state


def _values(table: ImageTable | None, column: str) -> int:
    """How many values a column has; none where there is no table."""
    return 0 if table is None else len(getattr(table, column).unique())
