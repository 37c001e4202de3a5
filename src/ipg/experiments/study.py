"""A study: which trials there are, and what identifies each.

A study file lists arms; every arm is run once a seed:

    dataset = "colored_mnist"
    seeds = 10
    [base]                       # configuration of all arms
    epochs = 18
    [[arm]]
    method = "ipg"
    protocol = "paper"
    config = { alpha = 0.5 }     # over the base
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipg.config import ConfigError, RunConfig

__all__ = ["Study", "Trial", "load_study"]


@dataclass(frozen=True)
class Trial:
    """One run of one arm with one seed."""

    study: str
    dataset: str
    method: str
    protocol: str
    seed: int
    config: RunConfig

    @property
    def key(self) -> str:
        """What identifies the trial: a digest of all that decides its outcome."""
        settled = {name: value for name, value in self.config.flat().items() if name not in ("device", "data_path")}
        text = json.dumps([self.study, self.dataset, self.method, self.protocol, self.seed, settled], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Study:
    """A set of independent trials."""

    name: str
    trials: tuple[Trial, ...]
    metrics_split: str
    """The split whose metrics the rows carry: `test`, or another while settings are being chosen."""


def load_study(path: Path) -> Study:
    """Read a study file; all mistakes are reported together."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([f"there is no study file {path}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not valid TOML: {error}"]) from None
    unknown = set(content) - {"dataset", "seeds", "metrics_split", "base", "arm"}
    problems = [f"{path}: unknown key {name!r}" for name in sorted(unknown)]
    trials: list[Trial] = []
    for number, arm in enumerate(content.get("arm", []), start=1):
        try:
            trials += _trials(path.stem, content, arm)
        except (ConfigError, KeyError) as error:
            reasons = error.problems if isinstance(error, ConfigError) else [f"lacks {error}"]
            problems += [f"{path}: arm {number}: {reason}" for reason in reasons]
    if problems:
        raise ConfigError(problems)
    return Study(path.stem, tuple(trials), content.get("metrics_split", "test"))


def _trials(study: str, content: Mapping[str, Any], arm: Mapping[str, Any]) -> list[Trial]:
    dataset = arm.get("dataset", content["dataset"])
    values = {**content.get("base", {}), **arm.get("config", {}), "data": dataset, "method": arm["method"]}
    seeds = arm.get("seeds", content["seeds"])
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    return [
        Trial(
            study, dataset, arm["method"], arm["protocol"], seed, RunConfig.from_mapping({**values, "seed": seed})
        )
        for seed in numbers
    ]
