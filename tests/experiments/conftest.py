"""Small trials, stubs of trials that other processes find by name, a project with rows, and a small reproduction."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from experiments import reproduction_rows
from experiments.table_rows import PAGE, STUDY, TUNED, TUNING, row, write

from ipg.config import RunConfig
from ipg.data import load
from ipg.data.table import ImageTable
from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.study import Trial, load_study

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A page with markers, three studies, and rows of all that they ask for but one seed of IPG and all of joint."""
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    for name, text in (("first", STUDY), ("tuned", TUNED), ("tuning", TUNING)):
        file = tmp_path / "studies" / f"{name}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        trials = load_study(file).trials
        rows = {
            # ERM 10, 20, 30 %: mean 20, deviation 10; IPG 70, 72 %: mean 71, deviation sqrt(2) = 1.4
            "first": lambda trials: [
                *(row(trial, share, last=share) for trial, share in zip(trials[:3], (0.1, 0.2, 0.3), strict=True)),
                row(trials[3], 0.70, worst=0.60, last=0.50, seconds=3.0),
                row(trials[4], 0.72, worst=0.64, last=0.52, seconds=6.0),
            ],
            "tuned": lambda trials: [row(trials[0], 0.715)],
            "tuning": lambda trials: [row(trials[0], 0.6), row(trials[1], 0.7)],
        }[name](trials)
        write(tmp_path / "results" / name / "trials.jsonl", rows)
    return tmp_path


@pytest.fixture
def small_reproduction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small reproduction as the only one; an empty folder of results."""
    folder = tmp_path / "reproductions"
    folder.mkdir()
    (folder / "01-small.toml").write_text(reproduction_rows.SMALL, encoding="utf-8")
    monkeypatch.setattr(reproduce_plan, "FOLDER", folder)
    return tmp_path
