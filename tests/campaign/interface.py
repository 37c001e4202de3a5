"""What a campaign is: a promise, how it is tried, and a great many cases of it, each told by a seed and a number."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

__all__ = ["CAMPAIGNS", "BrokenPromiseError", "Campaign", "Choosy", "Measuring", "campaign"]


class BrokenPromiseError(Exception):
    """What is not as promised."""


class Campaign(Protocol):
    """A module of this folder that is a campaign."""

    PROMISE: str
    """What is promised, in a sentence."""
    MEANS: str
    """How it is tried."""
    LIMITS: str
    """What is not promised."""
    CASES: int
    """How many cases make the campaign."""

    def prepare(self, folder: Path) -> Any:
        """Make in `folder` what all cases start from."""

    def attempt(self, world: Any, seed: int, number: int) -> str | None:
        """Try case `number`, the same whenever it is tried; what went wrong in a few words, None where nothing did."""


class Choosy(Campaign, Protocol):
    """A campaign that not every machine can try."""

    def missing(self) -> str | None:
        """What this one lacks, in words; None where it can."""


class Measuring(Campaign, Protocol):
    """A campaign whose row says more than how many cases failed."""

    def facts(self, world: Any) -> dict[str, Any]:
        """What the row keeps beside it."""

    def shown(self, row: dict[str, Any]) -> str:
        """How the page shows it, in Markdown."""


CAMPAIGNS = {
    "kills": "campaign.kills",
    "starvation": "campaign.starvation",
    "rubbish": "campaign.rubbish",
    "same_bits": "campaign.same_bits",
    "versions": "campaign.versions",
    "size": "campaign.size",
    "gpu": "campaign.gpu",
}
"""Campaigns by name, and the module of each."""


def campaign(name: str) -> Campaign:
    """The campaign of that name."""
    if name not in CAMPAIGNS:
        raise ValueError(f"there is no campaign {name!r}; there are {', '.join(CAMPAIGNS)}")
    return import_module(CAMPAIGNS[name])  # type: ignore[return-value]
