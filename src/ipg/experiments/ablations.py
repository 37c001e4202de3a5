"""IPG with one thing changed that the paper claims or takes for granted; known to studies alone.

    optimizers=separate    a second optimizer of the same kind makes the corrective updates
    labels=clean           the uniformity term sees the label that most images of a pair's content have
    corrupted=0.1          of a tenth of the training pairs the second members are exchanged across labels
    environment=first      training and validation images of one environment alone, pairs included
    reach=0.5              corrections reach the last half of the parameters alone, and cost less for it

What a run can be told without this file (margin 0 for no uniformity, `distance`, `strict`, `pair_builder`) is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.load import load
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.guidance import DrawsPairs, Guidance
from ipg.methods import STUDIED, parse_options
from ipg.methods.base import Setup
from ipg.methods.ipg import Ipg, build_guidance, guidance_arguments
from ipg.methods.optimizers import load_optimizer
from ipg.methods.options import option
from ipg.paired import Pairs
from ipg.pairs.pairset import PairSet
from ipg.records import Terms
from ipg.seeds import derive_seed
from ipg.training.materials import Materials, gather

__all__ = [
    "AblatedIpg",
    "AblatedOptions",
    "LateGuidance",
    "corrupt",
    "gather_trial",
    "majority_label",
    "one_environment",
]

ENVIRONMENTS = {"first": 0, "second": 1}


@dataclass(frozen=True)
class AblatedOptions:
    """What differs from IPG; nothing where none is given."""

    optimizers: Literal["shared", "separate"] = "shared"
    labels: Literal["given", "clean"] = "given"
    corrupted: float = option(0.0, least=0, most=1)
    environment: Literal["both", "first", "second"] = "both"
    reach: float = option(1.0, least=0, most=1)


class LateGuidance(Guidance):
    """Corrections that reach the last parameters alone: pairs pass the layers before without a graph.

    Args:
        reach: share of the parameters before the head, counted as tensors in the model's order; 0 is the head alone.
        arguments: those of `Guidance`.
    """

    def __init__(self, *arguments: Any, reach: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        head = set(self._forward.tap.head.parameters())
        before = [one for one in self.model.parameters() if one.requires_grad and one not in head]
        self.early = before[: round((1 - reach) * len(before))]

    def terms(self, pairs: Pairs) -> Terms:
        """As in `Guidance`, with the early parameters held for the while."""
        for parameter in self.early:
            parameter.requires_grad_(False)
        try:
            return super().terms(pairs)
        finally:
            for parameter in self.early:
                parameter.requires_grad_(True)


class AblatedIpg(Ipg):
    """IPG with one thing changed."""

    name: ClassVar[str] = "ipg_ablated"
    summary: ClassVar[str] = "IPG with one thing changed: for studies."
    whole: ClassVar[str] = "its second optimizer and its late corrections are for one process"
    Options: ClassVar[type] = AblatedOptions

    def build_guide(self, setup: Setup) -> Guidance:
        """IPG's guidance, over an optimizer of its own where they are separate."""
        self.second: torch.optim.Optimizer | None = None
        if cast(AblatedOptions, self.options).optimizers == "separate" and setup.make_optimizer is not None:
            self.second = setup.make_optimizer(setup.model)
            setup = replace(setup, optimizer=self.second)
        reach = cast(AblatedOptions, self.options).reach
        if reach == 1:
            return build_guidance(setup)
        return LateGuidance(setup.model, setup.optimizer, reach=reach, **guidance_arguments(setup))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One iteration; with separate optimizers the run's own makes the task update alone."""
        if self.second is None:
            return super().step(batch)
        task, due = self.setup.optimizer, self.guide.due
        for own, run in zip(self.second.param_groups, task.param_groups, strict=True):
            own["lr"] = run["lr"]
        task.zero_grad()
        correction = self.guide.correct(cast(DrawsPairs, self.setup.pairs))
        loss = self.setup.task_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        report = self.guide.rescale(correction, loss.detach())
        task.step()
        task.zero_grad()
        return report._asdict() | (self.guide.spread._asdict() if due else {}) | self.paced(due)

    def state_dict(self) -> dict[str, Any]:
        """The guide's state, and the second optimizer's."""
        own = {} if self.second is None else {"second": self.second.state_dict()}
        return {"guide": super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        super().load_state_dict(state["guide"])
        if self.second is not None:
            load_optimizer(self.second, state["second"])


STUDIED[AblatedIpg.name] = AblatedIpg


def gather_trial(config: RunConfig) -> Materials:
    """What the run of a trial works on: as any run's, changed as its ablation says."""
    if config.method != AblatedIpg.name:
        return gather(config)
    options: AblatedOptions = parse_options(AblatedIpg, config.options)
    table = load(config.data, path=config.data_path, size=config.size, seed=config.seed, reading=Reading.of(config))
    if options.environment != "both":
        table = one_environment(table, ENVIRONMENTS[options.environment])
    materials = gather(config, table=table)
    pairs = materials.pairs
    if pairs is None:
        return materials
    if options.labels == "clean":
        pairs = replace(pairs, label=majority_label(table)[table.content[pairs.source[:, 0]]])
    if options.corrupted:
        pairs = corrupt(pairs, options.corrupted, seed=derive_seed(config.seed, "corrupted pairs"))
    return replace(materials, pairs=pairs)


def one_environment(table: ImageTable, environment: int) -> ImageTable:
    """The table without the training and validation images of other environments, which go to a split of their own."""
    if environment not in table.environment[table.indices("train")]:
        raise ValueError(f"{table.name} has no training images of environment {environment}; take one that it has")
    seen = (table.split == table.splits.index("train")) | (table.split == table.splits.index("validation"))
    out = seen & (table.environment != environment)
    return replace(
        table, split=torch.where(out, len(table.splits), table.split), splits=(*table.splits, "other environments")
    )


def majority_label(table: ImageTable) -> Tensor:
    """The label that most training images of each content have, (contents,): the clean one under noise below a half."""
    rows = table.indices("train")
    contents, classes = int(table.content.max()) + 1, table.num_classes
    counts = torch.bincount(table.content[rows] * classes + table.label[rows], minlength=contents * classes)
    return counts.view(contents, classes).argmax(dim=1)


def corrupt(pairs: PairSet, share: float, *, seed: int) -> PairSet:
    """Exchange second members between pairs of different labels, until `share` of all pairs have a false one."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    one = pairs.label[order] == pairs.label.min()
    half = round(share * len(pairs) / 2)
    here, there = order[one][:half], order[~one][:half]
    if min(len(here), len(there)) < half:
        raise ValueError(
            f"corrupted={share:g}: {2 * half} of {len(pairs)} pairs cannot exchange members across labels, since one "
            f"label has fewer than {half}; lower the share"
        )
    second, source = pairs.second.clone(), pairs.source.clone()
    second[here], second[there] = pairs.second[there], pairs.second[here]
    source[here, 1], source[there, 1] = pairs.source[there, 1], pairs.source[here, 1]
    return replace(pairs, second=second, source=source, builder=f"{pairs.builder}, {share:.0%} corrupted")
