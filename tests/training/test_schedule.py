"""The learning rate by iteration, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from ipg.config import RunConfig
from ipg.training.optimization import learning_rate


def rates(total: int, **settings: object) -> list[float]:
    config = RunConfig(**{"learning_rate": 0.8, **settings}).suited()
    return [learning_rate(step, total, config) for step in range(total)]


def test_constant() -> None:
    assert rates(4, schedule="constant") == [0.8] * 4


def test_cosine_begins_at_the_peak_and_ends_near_zero() -> None:
    """0.4 (1 + cos 0), (1 + cos 45°), (1 + cos 90°), (1 + cos 135°); the zero comes after the last iteration."""
    half = 2**0.5 / 2
    assert rates(4, schedule="cosine") == pytest.approx([0.8, 0.4 * (1 + half), 0.4, 0.4 * (1 - half)], abs=1e-15)
    assert learning_rate(4, 4, RunConfig(learning_rate=0.8, schedule="cosine").suited()) == pytest.approx(0, abs=1e-15)


def test_a_step_down_to_a_tenth_in_the_second_half() -> None:
    assert rates(5, schedule="step") == pytest.approx([0.8, 0.8, 0.8, 0.08, 0.08])
    assert rates(4, schedule="step", warmup=1) == pytest.approx([0.8, 0.8, 0.08, 0.08])


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert rates(6, schedule="constant", warmup=4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_the_cosine_begins_after_the_warm_up() -> None:
    """Two iterations up, then the cosine over the four that are left: 0°, 45°, 90°, 135°."""
    half = 2**0.5 / 2
    expected = [0.4, 0.8, 0.8, 0.4 * (1 + half), 0.4, 0.4 * (1 - half)]
    assert rates(6, schedule="cosine", warmup=2) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
@pytest.mark.parametrize("warmup", [4, 9])
def test_a_warm_up_as_long_as_the_run_or_longer(schedule: str, warmup: int) -> None:
    assert rates(4, schedule=schedule, warmup=warmup) == pytest.approx([0.8 * (n + 1) / warmup for n in range(4)])


def test_a_warm_up_of_an_epoch() -> None:
    """Four iterations an epoch; of a run of one epoch half, so that the rate falls again."""
    assert rates(12, epochs=3, schedule="constant", warmup="epoch") == pytest.approx([0.2, 0.4, 0.6] + [0.8] * 9)
    assert rates(8, epochs=2, warmup="epoch") == rates(8, epochs=2, warmup=4)
    assert rates(8, epochs=1, warmup="epoch") == rates(8, epochs=1, warmup=4)
    assert rates(5, epochs=1, warmup="epoch") == rates(5, epochs=1, warmup=2)
    assert rates(3, epochs=3, warmup="epoch") == rates(3, epochs=3, warmup=1)
    assert rates(1, epochs=1, warmup="epoch") == rates(1, epochs=1, warmup=0)


def test_one_iteration() -> None:
    assert rates(1, schedule="cosine") == [0.8]
