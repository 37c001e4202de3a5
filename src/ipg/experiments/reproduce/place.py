"""Where and how reproductions are run, and what came of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ipg.experiments.cluster import Cluster
from ipg.experiments.study import Network

__all__ = ["Place", "Written"]


@dataclass(frozen=True)
class Place:
    """Where and how to run, and where things go."""

    results: Path
    """Folder of the studies' rows."""
    output: Path
    """Folder that tables and figures go to, one for each reproduction."""
    data_paths: Mapping[str, str] = field(default_factory=dict)
    """Where data sets are, by name; under "" for all others."""
    device: str = "auto"
    engine: str = "auto"
    workers: int | None = None
    run: bool = True
    """Whether to run what is missing, or to write what the rows give."""
    console: Console = field(default_factory=Console)
    only: tuple[str, ...] = ()
    """What to run, as `ipg study --only` has it; all where nothing is said. Tables tell of all rows there are."""
    seeds: int | None = None
    """Run the first so many seeds of every setting alone."""
    limit: float | None = None
    """Seconds after which trials under way are saved and the rest is left."""
    begun: float = field(default_factory=time.monotonic, compare=False)
    """When they begin to count."""
    cluster: Cluster | None = None
    """Where to run trials instead of on this machine."""
    network: Network | None = None
    """In the place of the one that trials which start from weights name."""

    @property
    def time_left(self) -> float | None:
        """Seconds until the rest is left, none or fewer where that is now; None without a limit."""
        return None if self.limit is None else self.limit - (time.monotonic() - self.begun)

    @property
    def is_over(self) -> bool:
        """Whether the rest is left."""
        return (left := self.time_left) is not None and left <= 0

    def data_path(self, dataset: str) -> str | None:
        """Where a data set is, where that was said."""
        return self.data_paths.get(dataset, self.data_paths.get(""))

    def say(self, line: str) -> None:
        """Tell whoever looks on."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Written:
    """What came of it."""

    folder: Path
    files: tuple[Path, ...]
    failed: int = 0
    """Trials that failed; they are tried again next time."""
    left: bool = False
    """Whether the time was over before all was run."""
