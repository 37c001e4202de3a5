"""Where a search looks for the settings of a method: a literal of names and the values each may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Choice", "LogUniform", "Range", "Uniform"]


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a choice needs at least one value, got none")


@dataclass(frozen=True)
class Uniform:
    """A number between two others, all alike."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")


@dataclass(frozen=True)
class LogUniform:
    """A number between two others, every power of ten alike."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"low={self.low:g} must be positive and below high={self.high:g}")


Range: TypeAlias = Choice | Uniform | LogUniform
"""The values that one setting may take in a search."""
