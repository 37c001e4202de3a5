"""The learning rate of runs that began again."""

from __future__ import annotations

from ipg.restarts import rate_after


def test_every_restart_halves_the_rate() -> None:
    assert [rate_after(3e-4, restarts) for restarts in range(4)] == [3e-4, 1.5e-4, 7.5e-5, 3.75e-5]


def test_a_whole_number_is_a_rate_too() -> None:
    assert repr(rate_after(1, 0)) == "1.0"
