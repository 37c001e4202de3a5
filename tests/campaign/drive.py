"""Run a campaign: case after case, resumable, and a row of it when the last is through.

The file of progress has a line a failure, and one for every hundred cases; a campaign that was stopped goes on behind
the last of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from campaign.interface import Campaign

from ipg.training.provenance import provenance

__all__ = ["Tally", "append", "run"]

EVERY = 100
"""Cases after which progress is written down."""


@dataclass
class Tally:
    """How far a campaign is."""

    done: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Number of the case, and what went wrong."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the campaign has found."""

    def row(self, name: str, seed: int) -> dict[str, Any]:
        """What is kept of a campaign."""
        origin = provenance(torch.device("cpu"))
        return {
            "campaign": name,
            "cases": self.done,
            "failures": len(self.failures),
            "seed": seed,
            **origin,
            **self.facts,
        }


def run(
    campaign: Campaign,
    *,
    seed: int,
    cases: int,
    progress: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Try `cases` cases; those that the file `progress` knows are not tried again.

    Args:
        campaign: which.
        seed: with its number it makes a case.
        cases: how many.
        progress: file of what is done; nothing is kept where not given.
        tell: called with a line on every failure, and every now and then.
    """
    tally = _read(progress)
    with tempfile.TemporaryDirectory(prefix="ipg-campaign-") as folder:
        world = campaign.prepare(Path(folder)) if tally.done < cases else None
        while tally.done < cases:
            number = tally.done
            if (wrong := campaign.attempt(world, seed, number)) is not None:
                tally.failures.append((number, wrong))
                _note(progress, {"case": number, "failure": wrong})
                tell(f"case {number}: {wrong}")
            tally.done += 1
            if tally.done % EVERY == 0 or tally.done == cases:
                _note(progress, {"done": tally.done})
                tell(f"{tally.done:,} of {cases:,} cases, {len(tally.failures):,} failures")
        if world is not None and hasattr(campaign, "facts"):
            tally.facts = campaign.facts(world)
    return tally


def append(file: Path, row: dict[str, Any]) -> None:
    """Add a row to the file of rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")


def _read(progress: Path | None) -> Tally:
    """What is done; failures behind the last note of progress come again."""
    tally = Tally()
    lines = progress.read_text(encoding="utf-8").splitlines() if progress is not None and progress.exists() else []
    notes = [json.loads(line) for line in lines]
    tally.done = max((note["done"] for note in notes if "done" in note), default=0)
    found = {note["case"]: note["failure"] for note in notes if "case" in note and note["case"] < tally.done}
    tally.failures = sorted(found.items())
    return tally


def _note(progress: Path | None, note: dict[str, Any]) -> None:
    if progress is not None:
        append(progress, note)
