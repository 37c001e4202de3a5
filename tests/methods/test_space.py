"""Where a search looks."""

from __future__ import annotations

import pytest

from ipg.methods.space import Choice, LogUniform, Uniform, Whole, ZeroOr


def test_equal_ranges_are_equal() -> None:
    assert Choice((1, 2)) == Choice((1, 2)) != Choice((2, 1))
    assert Uniform(0, 1) != LogUniform(1, 2)


def test_ranges_without_a_value() -> None:
    with pytest.raises(ValueError, match="a choice needs at least one value, got none"):
        Choice(())
    with pytest.raises(ValueError, match="low=1 must be below high=1"):
        Uniform(1, 1)
    for low, high in ((0, 1), (-1, 1), (2, 1)):
        with pytest.raises(ValueError, match=f"low={low} must be positive and below high={high}"):
            LogUniform(low, high)
    with pytest.raises(ValueError, match="low=3 must be below high=3"):
        Whole(3, 3)
    for low, high in ((-1, 1), (2, 1)):
        with pytest.raises(ValueError, match=f"low={low} must be at least 0 and below high={high}"):
            ZeroOr(low, high)
