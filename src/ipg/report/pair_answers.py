"""What runs answer on held-out pairs, and which of these to show."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ipg.evaluation.groups import predict
from ipg.methods import method_class
from ipg.notebook import Run
from ipg.pairs.pairset import PairSet
from ipg.report.page import Flip
from ipg.report.views import PairAnswers
from ipg.training.device import autocast_dtype, numerics

__all__ = ["answers", "find_flips", "in_turns", "measures_on"]


def answers(run: Run) -> PairAnswers | None:
    """How often a run changes its answer on its held-out pairs, and is right about both; None without any."""
    held_out = run.materials.held_out
    if held_out is None or len(held_out) == 0:
        return None
    first, second = _predict(run, held_out)
    label = held_out.label.cpu()
    return PairAnswers(len(label), int((first != second).sum()), int(((first == label) & (second == label)).sum()))


def find_flips(runs: Sequence[Run], names: Sequence[str], before: int, after: int) -> list[Flip]:
    """Held-out pairs on which run `before` changes its mind and run `after` is right about both members.

    Runs whose held-out pairs are others (another seed, another number of them) have nothing to say of these. The labels
    take turns.
    """
    shown = runs[before].materials.held_out
    if shown is None or not measures_on(runs[after], shown):
        return []
    said = {n: _predict(run, _as_seen(run, shown)) for n, run in enumerate(runs) if measures_on(run, shown)}
    label = shown.label.cpu()
    flips = said[before][0] != said[before][1]
    right = (said[after][0] == label) & (said[after][1] == label)
    classes = runs[before].materials.table.classes
    return [
        Flip(
            shown.first[row].cpu(),
            shown.second[row].cpu(),
            classes[int(label[row])],
            {names[n]: (classes[int(a[row])], classes[int(b[row])]) for n, (a, b) in said.items()},
        )
        for row in in_turns(label, torch.nonzero(flips & right).flatten())
    ]


def measures_on(run: Run, shown: PairSet) -> bool:
    """Whether the held-out pairs of `run` are those `shown`."""
    own = run.materials.held_out
    if own is None:
        return False
    seen = _as_seen(run, shown)
    return all(torch.equal(a.cpu(), b) for a, b in ((own.first, seen.first), (own.second, seen.second)))


def in_turns(label: Tensor, rows: Tensor) -> list[int]:
    """The given rows, one of each label after the other."""
    queues = [[row for row in rows.tolist() if int(label[row]) == value] for value in sorted(set(label.tolist()))]
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _as_seen(run: Run, pairs: PairSet) -> PairSet:
    """The pairs as the method of `run` sees them, on the CPU."""
    return pairs.to("cpu").map(method_class(run.config.method).transform)


def _predict(run: Run, pairs: PairSet) -> tuple[Tensor, Tensor]:
    """The classes that a run gives the first and the second members of pairs, as its method sees them."""
    autocast = autocast_dtype(run.config)
    with numerics(run.config, next(run.model.parameters()).device):  # as in training
        first, second = (predict(run.model, images, autocast=autocast).cpu() for images in (pairs.first, pairs.second))
    return first, second
