"""Where a search looks for the settings of a method: a literal of names and the values each may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Choice", "LogUniform", "Range", "Uniform", "Whole", "ZeroOr"]


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


@dataclass(frozen=True)
class Whole:
    """A whole number from one to another, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")


@dataclass(frozen=True)
class ZeroOr:
    """0 as often as not, else a number between two others: for settings that 0 switches off."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low={self.low:g} must be at least 0 and below high={self.high:g}")


Range: TypeAlias = Choice | Uniform | LogUniform | Whole | ZeroOr
"""The values that one setting may take in a search."""
