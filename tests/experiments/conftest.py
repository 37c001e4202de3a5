"""Small trials, and stubs of trials that other processes find by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipg.config import RunConfig
from ipg.data import load
from ipg.data.table import ImageTable
from ipg.experiments.study import Trial

SMALL: dict[str, Any] = {"epochs": 2, "batch": 32, "pairs": 8, "pair_batch": 4, "held_out_pairs": 4, "data": "bars"}


@pytest.fixture
def small() -> dict[str, Any]:
    """Settings that train in no time."""
    return dict(SMALL)


@pytest.fixture
def bars(make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The small images as a data set of that name; what it was asked for."""
    asked: dict[str, Any] = {}

    def loader(path: Any, size: Any, seed: int) -> ImageTable:
        asked.update(path=path, size=size, seed=seed)
        return make_table(seed=seed)

    monkeypatch.setitem(load.DATASETS, "bars", loader)
    return asked


@pytest.fixture
def few_images(make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small images under the names of the embedded ones."""
    for name in ("colored_fashion", "colored_fashion_noisy"):
        monkeypatch.setitem(
            load.DATASETS, name, lambda path, size, seed: make_table(train=2600, validation=400, seed=seed)
        )


@pytest.fixture(scope="session")
def trial() -> Callable[..., Trial]:
    """Makes trials on `bars`."""

    def make(method: str = "ipg", seed: int = 0, **changes: Any) -> Trial:
        config = RunConfig(method=method, seed=seed, **SMALL | changes)
        return Trial("small", "bars", method, "paper", seed, config)

    return make


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of stubs, where processes that are started here find it too."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("study_stubs")


@pytest.fixture
def search_stubs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of stubs of a search, where processes that are started here find it too."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("search_stubs")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The folder of the stubs' notes."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder
