"""Where a run is, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.evaluation.selection import select
from ipg.training.identity import settled

__all__ = ["Outcome", "Progress"]


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    model: nn.Module
    """The network with the weights of the kept epoch."""
    rows: Sequence[dict[str, Any]]
    """A row an epoch, as in `metrics.jsonl`; one more, `refitted`, where the kept network was fitted anew."""
    result: dict[str, Any]
    """What `result.json` holds."""


@dataclass
class Progress:
    """Where a run is; part of every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    preparing_seconds: float = 0.0
    """Of these, what iterations at full speed had to wait for."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Weights of the epoch that the selection rule keeps."""
    restarts: int = 0
    """How often the run has begun again, each time with half the learning rate."""

    def selected(self, config: RunConfig) -> int:
        """The row whose network is kept: the rule's choice, or the one after a refit."""
        return len(self.rows) - 1 if len(self.rows) > config.epochs else select(config.selection, self.rows)

    def result(self, config: RunConfig) -> dict[str, Any]:
        """What the rows come to: the configuration, and the metrics of the kept and of the last of them."""
        kept, final = self.rows[self.selected(config)], self.rows[-1]

        def summary(row: dict[str, Any]) -> dict[str, Any]:
            test = row.get("test") or {}
            return {**test, "pair_disagreement": row["pair_disagreement"]}

        return {
            "config": settled(config),
            "selection": config.selection,
            "selected_epoch": kept["epoch"],
            **({"refitted_epoch": kept["refitted"]} if "refitted" in kept else {}),
            **({"offsets": kept["offsets"]} if "offsets" in kept else {}),
            **({"restarted": self.restarts} if self.restarts else {}),
            "metrics": summary(kept),
            "last_metrics": summary(final),
        }
