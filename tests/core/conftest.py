"""The helpers of the tests of the core, as fixtures."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from modules import load_file


@pytest.fixture(scope="session")
def naive() -> ModuleType:
    """Algorithm 1 as it is printed."""
    return load_file(Path(__file__).with_name("naive.py"))


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """Small seeded models, batches and pairs."""
    return load_file(Path(__file__).with_name("toys.py"))


@pytest.fixture(autouse=True)
def _quiet(one_thread: None, own_random_state: None) -> None:
    """One thread and one seed for every test here."""
