"""Small runs: 120 training images, 4 iterations an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.training.materials import Materials, gather


@pytest.fixture(autouse=True)
def _quiet(one_thread: None, own_random_state: None) -> None:
    """One thread and one seed for every test here."""


@pytest.fixture(scope="session")
def table(make_table: Callable[..., ImageTable]) -> ImageTable:
    return make_table()


@pytest.fixture
def settings() -> Callable[..., RunConfig]:
    """Makes configurations of small runs."""

    def make(method: str = "erm", **changes: Any) -> RunConfig:
        small: dict[str, Any] = {"epochs": 3, "batch": 32, "pairs": 12, "pair_batch": 5, "held_out_pairs": 6}
        return RunConfig(method=method, **{"device": "cpu"} | small | changes)

    return make


@pytest.fixture
def materials(table: ImageTable) -> Callable[[RunConfig], Materials]:
    """Makes what a run works on; always anew, since training changes the network."""
    return lambda config: gather(config, table=table)
