"""What a search is to do, and a trial of it as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ipg.config import RunConfig
from ipg.experiments.search.objective import Objective
from ipg.experiments.search.space import describe
from ipg.experiments.study import ELSEWHERE
from ipg.methods.space import Range

__all__ = ["MACHINE", "STARTUP", "Plan", "Sampler", "State", "Tried"]

MACHINE = (*ELSEWHERE, "engine")
"""Settings that a search may go on with others of: how fast trials run, and where."""
STARTUP = 10
"""Until so many trials have ended TPE draws at random."""
Sampler = Literal["tpe", "random"]
State = Literal["complete", "wrong", "pruned", "failed", "running"]
"""`wrong`: training collapsed or ran into NaN, which counts as the worst value; `failed`: there is no telling."""


@dataclass(frozen=True)
class Plan:
    """What is searched for, and how."""

    name: str
    base: RunConfig
    space: Mapping[str, Range]
    objective: Objective
    trials: int = 100
    sampler: Sampler = "tpe"
    prune: bool = False
    """Whether trials that are behind the median of the others are given up."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this search and no other; a search may be given more trials later."""
        left_out = {*MACHINE, *self.space}
        fixed = {name: value for name, value in self.base.flat().items() if name not in left_out}
        space = {name: describe(range_) for name, range_ in self.space.items()}
        return {**fixed, "sampler": self.sampler, "objective": self.objective, "prune": self.prune, "space": space}


@dataclass(frozen=True)
class Tried:
    """A trial as it stands."""

    number: int
    state: State
    value: float | None
    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    """What its row says: metrics, seconds, commit, …"""
