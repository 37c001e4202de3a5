"""The helpers of the tests of the core, as fixtures: tests are no package, so they cannot import each other."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ipg_core_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def naive() -> ModuleType:
    """Algorithm 1 as it is printed."""
    return _load("naive")


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """Small seeded models, batches and pairs."""
    return _load("toys")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The models are too small to share out: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _own_random_state() -> Iterator[None]:
    """Each test starts from one seed and leaves the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
