"""Verdicts of a person who has looked at pairs. They stand whatever an audit finds later, unless a pair is unusable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipg.data.errors import ProblemsError
from ipg.pairs.rows import Manifest, Pair
from ipg.words import number_of

__all__ = ["BY_EYE", "accept", "is_accepted", "reject"]

BY_EYE = "by eye"
"""What the reason of such a verdict begins with."""


def reject(manifest: Manifest, numbers: Sequence[int], *, reason: str = "") -> Manifest:
    """The manifest with these pairs marked as rejected (numbers from 1, as on the sheet). The file is not written.

    Raises:
        ProblemsError: there are no such pairs.
    """
    why = f"{BY_EYE}: {reason.strip()}" if reason.strip() else BY_EYE
    return _judged(manifest, numbers, status="rejected", reason=why)


def accept(manifest: Manifest, numbers: Sequence[int]) -> Manifest:
    """The manifest with these pairs marked as accepted, whoever rejected them; otherwise as `reject`."""
    return _judged(manifest, numbers, status="ok", reason=BY_EYE)


def is_accepted(pair: Pair) -> bool:
    """Whether a person has accepted the pair."""
    return pair.status == "ok" and pair.reason.startswith(BY_EYE)


def _judged(manifest: Manifest, numbers: Sequence[int], *, status: str, reason: str) -> Manifest:
    if beyond := sorted({number for number in numbers if not 1 <= number <= len(manifest)}):
        there = number_of(len(manifest), "pair")
        raise ProblemsError([f"there is no pair {number}: {manifest.path} has {there}" for number in beyond])
    chosen = {number - 1 for number in numbers}
    return manifest.with_pairs(
        [
            replace(pair, status=status, reason=reason) if row in chosen else pair
            for row, pair in enumerate(manifest.pairs)
        ]
    )
