"""Where the line between classes is drawn: offsets of the logits, chosen on validation images.

A network trained on unbalanced groups may tell the classes apart well and still answer one of them too often. Offsets
move the line and nothing else; added to the biases of the head they are part of the network, wherever it goes.

`decide` finds the best line for given logits. A network that computes in bf16 rounds its logits once more with the
offsets in its head, so that it may draw another line than the one that was found: `draw_line` judges a line by what the
network says with it, and what is scored is what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ipg.collectives import in_shards
from ipg.data.table import ImageTable
from ipg.rationale import find_head, predicted_class

__all__ = ["DECISIONS", "decide", "draw_line", "movable_head", "moved"]

DECISIONS = {
    "argmax": "the class of the largest logit",
    "worst_group": "offsets of the classes that are best for the worst group of the validation images",
    "balanced": "offsets of the classes that are best for the mean over classes of the validation images",
}
"""Ways to draw the line, in words."""
SWEEPS = 10
"""Rounds over the classes at most; with two classes the first is exact."""
LINES = 4
"""Lines that are tried on a network at most; in single precision the first is nearly always what it promises."""


def draw_line(logits: Tensor, answers: Callable[[Tensor], Tensor], table: ImageTable, rule: str) -> Tensor:
    """The offsets (K,) that `rule` gives the classes, each line being worth what the network says with it in its head.

    A line is found from what the network says, and tried; if it falls short of what it promised, the next one is found
    from what the network has said with it. The best of those tried is taken, and none where all are worse than offsets
    of 0.

    Args:
        logits: what the network says of each image as it is, (N, K).
        answers: gives what it says with offsets (K,) in its head, in the precision that it is used in.
        table: the images.
        rule: as for `decide`.
    """
    said, label, unit = logits.detach().cpu().double(), table.label.cpu(), _units(table, rule)
    offsets = kept = torch.zeros(said.shape[1], dtype=torch.float64)
    if not len(said):
        return kept
    worth = partial(_worth, label=label, unit=unit, worst_first=rule == "worst_group")
    best = worth(said)
    for _ in range(LINES):
        move = decide(said, table, rule)
        promised, offsets = worth(said + move), offsets + move
        said = answers(offsets).detach().cpu().double()
        if (shown := worth(said)) >= best:
            best, kept = shown, offsets
        if best >= promised:
            break
    return kept


def decide(logits: Tensor, table: ImageTable, rule: str) -> Tensor:
    """The offsets (K,) that `rule` gives the classes, from `logits` (N, K) of the images of `table`.

    With two classes the best of all lines is found. With more, classes are moved in turn as long as it helps. Where
    many lines are equally good, the middle of the widest range of them is taken.

    Args:
        logits: what the network says of each image.
        table: the images.
        rule: `worst_group`, the highest accuracy of the group that has the lowest, then of the mean of groups; or
            `balanced`, the highest mean accuracy of the classes, which needs no group labels.
    """
    said, label, unit = logits.detach().cpu().double(), table.label.cpu(), _units(table, rule)
    offsets = torch.zeros(said.shape[1], dtype=torch.float64)
    if not len(said):
        return offsets
    worst_first = rule == "worst_group"
    best = _worth(said, label, unit, worst_first=worst_first)
    for _ in range(SWEEPS if len(offsets) > 2 else 1):
        before = best
        for of in range(1, len(offsets)):
            offset, score = _line(said + offsets, label, unit, of, worst_first=worst_first)
            if score >= best:
                offsets[of] += offset
                best = score
        if best <= before:
            break
    return offsets


def _units(table: ImageTable, rule: str) -> Tensor:
    """To which of the groups or classes that `rule` looks at each image belongs, (N, U), one of them 1."""
    if rule not in DECISIONS or rule == "argmax":
        raise ValueError(f"there are no offsets for {rule!r}; there are some for worst_group and balanced")
    key = (table.label if rule == "balanced" else table.group).cpu()
    units: Tensor = key.unique()  # type: ignore[no-untyped-call]
    return (key[:, None] == units).double()


def _worth(said: Tensor, label: Tensor, unit: Tensor, *, worst_first: bool) -> tuple[float, float]:
    """What one line is worth, from the logits (N, K) that it gives."""
    right = (predicted_class(said) == label).double()[:, None]  # (N, 1)
    shares = (right * unit).sum(dim=0) / unit.sum(dim=0)
    mean = float(shares.mean())
    return (float(shares.min()) if worst_first else mean, mean)


def _line(
    said: Tensor, label: Tensor, unit: Tensor, of: int, *, worst_first: bool
) -> tuple[float, tuple[float, float]]:
    """The best offset of class `of`, the others being as they are, and what it is worth.

    An image is given the class as soon as the offset exceeds the gap to its best other class, so between one gap and
    the next nothing changes: the shares of all units (N + 1 ranges, U) are sums over the sorted gaps.
    """
    others = said.clone()
    others[:, of] = -torch.inf
    rival, best_other = others.max(dim=1)
    gaps, order = (rival - said[:, of]).sort()
    counts, unit = unit.sum(dim=0), unit[order]
    own, other = (label == of)[order, None] * unit, (best_other == label)[order, None] * unit
    start = torch.zeros(1, unit.shape[1], dtype=unit.dtype)
    won, lost = (torch.cat([start, column.cumsum(dim=0)]) for column in (own, other))
    shares = (won + other.sum(dim=0) - lost) / counts
    mean = shares.mean(dim=1)
    first = shares.min(dim=1).values if worst_first else mean
    edges = torch.cat([gaps[:1] - 1, gaps, gaps[-1:] + 1])
    real = edges[1:] > edges[:-1]  # equal gaps are passed together
    good = real & (first == first[real].max())
    good &= mean == mean[good].max()
    return _middle(edges, good, real), (float(first[good].max()), float(mean[good].max()))


def _middle(edges: Tensor, good: Tensor, real: Tensor) -> float:
    """The middle of the widest run of `good` ranges between `edges`; ranges that are not `real` break no run."""
    runs: list[list[float]] = []
    follows = False
    for low, high, fine, wide in zip(
        edges[:-1].tolist(), edges[1:].tolist(), good.tolist(), real.tolist(), strict=True
    ):
        if not wide:
            continue
        if fine and follows:
            runs[-1][1] = high
        elif fine:
            runs.append([low, high])
        follows = fine
    low, high = max(runs, key=lambda run: run[1] - run[0])
    return (low + high) / 2


def movable_head(model: nn.Module) -> nn.Linear:
    """The head of `model`, whose biases hold the offsets.

    Raises:
        ValueError: it has none, or a single logit for two classes.
    """
    head = find_head(model)
    if head.out_features == 1:
        raise ValueError(
            f"the head of {type(model).__name__} has one logit, and the line between classes is moved by one a class; "
            "use decision='argmax'"
        )
    if head.bias is None:
        raise ValueError(
            f"the head of {type(model).__name__} has no biases, so the line between classes cannot be moved; use "
            "decision='argmax'"
        )
    return head


def _laid_like(bias: Any, offsets: Tensor) -> Tensor:
    """`offsets` where and how `bias` is: whole, or in shards (FSDP2)."""
    offsets = offsets.to(device=bias.device, dtype=bias.dtype)
    if not in_shards(bias):
        return offsets
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(offsets, bias.device_mesh, bias.placements)


@contextmanager
def moved(head: nn.Linear, offsets: Tensor) -> Iterator[None]:
    """`head` with `offsets` (K,) added to its biases; afterwards they are as before, to the bit."""
    before = head.bias.detach().clone()
    with torch.no_grad():
        head.bias.add_(_laid_like(head.bias, offsets))
    try:
        yield
    finally:
        with torch.no_grad():
            head.bias.copy_(before)
