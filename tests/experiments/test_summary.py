"""What the package knows of the project's own rows, where these are not at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipg.experiments import summary
from ipg.experiments.reproduce.list import listing
from ipg.experiments.reproduce.plan import load_reproduction, names
from ipg.experiments.study import Trial
from ipg.experiments.summary import (
    Standing,
    Time,
    packaged_standing,
    packaged_verdict,
    standings,
    summary_text,
    times_of,
)
from ipg.methods import METHODS


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Rows of two seeds of plain training under label noise: one alone on its GPU, one not."""
    trials = next(cell for cell in load_reproduction("label_noise").cells if cell.name == "ERM, no label noise").trials
    rows = [row(trials[0], seconds=8.04), row(trials[1], seconds=30.0, sharing=2)]
    file = tmp_path / "results" / "some" / "trials.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return tmp_path / "results"


def row(trial: Trial, **changes: Any) -> dict[str, Any]:
    config = {name: value for name, value in trial.config.flat().items() if name not in ("seed", "data_path")}
    return {
        **trial.identity,
        "config": config,
        "split": "test",
        "metrics": {"average": 0.5, "worst_group": 0.1, "groups": {}},
        "hardware": "a machine",
        "versions": {"python": "3.99", "torch": "9.9"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
        **changes,
    }


def test_standings_are_counted_and_timed(results: Path) -> None:
    found = standings(results)
    assert list(found) == names()
    assert found["label_noise"] == Standing(2, (Time("colored_mnist_clean", "a machine", 8.0, 1),))
    assert found["theory"] == found["hyperparameters"] == Standing(0, ())


def test_where_no_trial_was_alone_those_tell_that_as_many_shared_a_gpu_as_most() -> None:
    alone = {"dataset": "a", "hardware": "h", "seconds": 3.0}
    crowd = [
        {**alone, "dataset": data, "seconds": s, "sharing": 5} for data, s in (("a", 9.0), ("b", 10.0), ("b", 20.0))
    ]
    few = {**alone, "dataset": "b", "seconds": 1.0, "sharing": 2}
    beside = {**alone, "dataset": "c", "seconds": 7.0, "others": True}
    assert times_of([*crowd, few, alone, beside]) == (
        Time("a", "h", 3.0, 1),
        Time("b", "h", 15.0, 2, sharing=5),
        Time("c", "h", 7.0, 1, others=True),
    )


def test_trials_of_a_search_are_timed(tmp_path: Path) -> None:
    trial = load_reproduction("label_noise").trials[0]
    file = tmp_path / "hyperparameters" / "colored_mnist" / "trials.jsonl"
    file.parent.mkdir(parents=True)
    rows = [row(trial, dataset="colored_mnist", seconds=seconds, sharing=5) for seconds in (40.0, 60.0)]
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    (file.parent / "best.toml").write_text("alpha = 0.1\n", encoding="utf-8")
    found = standings(tmp_path)["hyperparameters"]
    assert found == Standing(1, (Time("colored_mnist", "a machine", 50.0, 2, sharing=5),))
    lines = "\n".join(listing(tmp_path))
    told = "ColoredMNIST 17 min on a machine (100 trials of 50 s, 5 at a time on one GPU, the mean of 2 measured); "
    assert f"{told}Waterbirds-100 not measured (100 trials)" in lines


def test_the_file_says_the_same(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(summary_text(results))
    assert set(content["methods"]) == set(METHODS)
    monkeypatch.setattr(summary, "_packaged", lambda: content)
    assert packaged_standing("label_noise") == standings(results)["label_noise"]
    assert packaged_standing("pears") is None
    assert packaged_verdict("gals").reason.startswith("needs CLIP weights")
    lines = "\n".join(listing(results / "nowhere"))
    assert "ColoredMNIST, no label noise 3 min on a machine (20 trials of 8 s, the mean of 1 measured)" in lines
    assert "done   0 of 40 trials here, 2 in the project's own results" in lines
    assert "in the project's own results" not in "\n".join(listing(results))  # with rows at hand


def test_what_the_package_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_packaged", lambda: {"reproductions": {}, "methods": {}})
    assert packaged_verdict("irm").state == "unknown"


def test_the_command_that_writes_the_tables_writes_it(results: Path, tmp_path: Path) -> None:
    from ipg.experiments.table import main

    readme, package = tmp_path / "README.md", tmp_path / "src" / "ipg" / "experiments"
    readme.write_text("<!-- results:margin -->\n<!-- /results:margin -->\n", encoding="utf-8")
    package.mkdir(parents=True)
    arguments = [str(readme), "--results", str(results)]
    assert main(["--write", *arguments]) == 0
    assert (package / "summary.json").read_text(encoding="utf-8") == summary_text(results)
    assert main(["--check", *arguments]) == 0
    (package / "summary.json").write_text("{}", encoding="utf-8")
    assert main(["--check", *arguments]) == 1


def test_the_packages_own_is_what_the_rows_give(repo_root: Path) -> None:
    told = (repo_root / "src" / "ipg" / "experiments" / summary.FILE).read_text(encoding="utf-8")
    assert told == summary_text(repo_root / "results"), "run python -m ipg.experiments.table --write README.md"
