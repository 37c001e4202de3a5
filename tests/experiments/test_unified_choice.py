"""What the unified protocol chooses from rows, and what the page of results says of the choice."""

from __future__ import annotations

import io
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from experiments.unified_rows import SMALL, metrics_of, row_of
from rich.console import Console

from ipg.experiments.runner import run_study
from ipg.experiments.store import read_rows
from ipg.experiments.study import load_study
from ipg.experiments.tables import long
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rows import measured
from ipg.experiments.unified import run
from ipg.experiments.unified.plan import ceiling_of, load_protocol, sets_apart
from ipg.experiments.unified.run import main, worth


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tuning study of a small protocol."""
    monkeypatch.setattr(run, "load_protocol", lambda dataset: SMALL)
    assert main(["tuning", "bars", "--studies", str(tmp_path)]) == 0
    return tmp_path


def freeze(folder: Path, *more: str) -> int:
    return main(["freeze", "bars", "--studies", str(folder), "--results", str(folder / "results"), *more])


def keep(folder: Path, rows: list[dict[str, Any]]) -> None:
    file = folder / "results" / "bars_unified_tuning" / "trials.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def judged(folder: Path, worths: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """A row for each trial of the small protocol: average, worst group, mean of groups."""
    trials = load_study(folder / "bars_unified_tuning.toml").trials
    return [row_of(trial, "validation", *values) for trial, values in zip(trials, worths, strict=True)]


def frozen(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "bars_unified.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("lff", "expected"),
    [
        ([(0.9, 0.1, 0.9), (0.5, 0.3, 0.3), (0.9, 0.2, 0.9)], 1),  # the worst group decides
        ([(0.9, 0.3, 0.4), (0.5, 0.3, 0.4), (0.9, 0.3, 0.5)], 2),  # then the mean of groups
        ([(0.1, 0.3, 0.4), (0.9, 0.3, 0.4), (0.9, 0.3, 0.4)], 0),  # then who comes first
        ([(0.9, None, 0.9), (0.5, 0.0, 0.3), (0.9, None, 0.9)], 1),  # what was not measured loses
    ],
)
def test_the_best_configuration_is_frozen(small: Path, lff: list[tuple[Any, ...]], expected: int) -> None:
    keep(small, list(reversed(judged(small, [(0.5,), *lff, (0.6,)]))))
    assert freeze(small) == 0
    content = frozen(small)
    tried = [trial.config.options for trial in load_study(small / "bars_unified_tuning.toml").trials[1:4]]
    assert [arm.get("config", {}) for arm in content["arm"]] == [
        {},
        {"options": tried[expected]},
        {"class_weighted": False},
    ]
    assert {arm["protocol"] for arm in content["arm"]} == {"unified"}
    assert "metrics_split" not in content
    assert content["base"] == SMALL.base
    study = load_study(small / "bars_unified.toml")
    assert [(trial.method, trial.seed) for trial in study.trials] == [
        (method, seed) for method in ("erm", "lff", "erm") for seed in (0, 1)
    ]
    text = (small / "bars_unified.toml").read_text(encoding="utf-8")
    assert f"# configuration {expected + 1} of 3: {lff[expected][1]:.4f}\n[[arm]]" in text
    assert "`python -m ipg.experiments.unified freeze bars`" in text
    assert "Left out" not in text


def test_rows_of_the_test_split_do_not_count(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = judged(small, [(0.5,)] * 5)
    keep(small, [*rows[:2], rows[2] | {"split": "test"}, *rows[3:]])
    assert freeze(small) == 2
    assert "missing of lff (1 of 3)" in capsys.readouterr().err


def test_missing_rows_are_named_and_nothing_is_written(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(small, judged(small, [(0.5,)] * 5)[:2])
    assert freeze(small) == 2
    assert capsys.readouterr().err == (
        "ipg.experiments.unified: rows of bars_unified_tuning are missing of lff (2 of 3), erm class_weighted=False "
        "(1 of 1): run `ipg study bars_unified_tuning`, or leave methods out with --partial\n"
    )
    assert not (small / "bars_unified.toml").exists()


def test_partial_leaves_methods_out_and_says_so(small: Path) -> None:
    keep(small, judged(small, [(0.5,)] * 5)[:2])
    assert freeze(small, "--partial") == 0
    assert [arm["method"] for arm in frozen(small)["arm"]] == ["erm"]
    text = (small / "bars_unified.toml").read_text(encoding="utf-8")
    assert "# Left out, since rows were missing: lff, erm class_weighted=False.\n" in text


def test_there_has_to_be_something_to_freeze(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert freeze(small, "--partial") == 2
    assert "no method has all of its rows of bars_unified_tuning" in capsys.readouterr().err


def test_rows_of_another_protocol_are_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small / "bars_unified_tuning.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("epochs = 1", "epochs = 2"), encoding="utf-8")
    assert freeze(small) == 2
    assert "is not what the protocol gives; write it with `python -m" in capsys.readouterr().err
    file.unlink()
    assert freeze(small) == 2
    assert "there is no study file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("search", (0.7,)),
        ("training_environments", (0.6,)),
        ("worst_group", (0.3, 0.4)),
        ("pairs", (0.6,)),
    ],
)
def test_what_a_row_is_worth(rule: str, expected: tuple[float, ...]) -> None:
    assert worth(rule, {"metrics": metrics_of(0.7, 0.3, 0.4)}) == pytest.approx(expected)
    assert rule in run.RULES


def test_a_run_that_went_wrong_is_chosen_only_where_all_did() -> None:
    """One class for every image is right for half of them, more than an honest network that trusts the colour."""
    honest, constant = metrics_of(0.42), metrics_of(0.5)
    constant["groups"] = {"0, red": {"accuracy": 1.0, "count": 5}, "1, red": {"accuracy": 0.0, "count": 5}}
    rows = [{"metrics": constant}, {"metrics": honest}, {"metrics": metrics_of(0.6), "collapse": "it collapsed"}]
    assert run.best_of("search", rows) == 1
    assert run.best_of("search", [rows[0], rows[2]]) == 1


def test_more_than_the_digits_allow_is_chosen_only_where_all_have_it() -> None:
    """A network that reads the colour the other way round is right where the colour misleads, nine times in ten."""
    rows = [{"metrics": metrics_of(value)} for value in (0.6, 0.9, 0.77, 0.95)]
    assert run.best_of("search", rows, 0.77) == 2
    assert run.best_of("search", rows) == 3
    assert run.best_of("search", [rows[1], rows[3]], 0.77) == 1
    ceiling = load_protocol("colored_mnist").ceiling
    assert ceiling is not None
    assert 0.75 < ceiling < 0.8


def test_the_page_of_results_names_methods_and_the_best_of_each(small: Path) -> None:
    keep(small, judged(small, [(0.5,), (0.9, 0.2), (0.9, 0.4), (0.9, 0.3), (0.5, 0.6)]))
    page = results_page(measured(small / "results", small), [], [])
    lines = [line for line in page.splitlines() if line.startswith(("| ERM", "| LfF"))]
    assert [("amplification" in line, "highest" in line) for line in lines] == [
        (False, True),
        (False, False),
        (True, True),
        (True, False),
        (True, False),
    ]
    assert "| 40.0 |" in lines[2]
    assert "| method | class weighted | seeds | worst group on `validation` |" in page


def test_settings_above_the_ceiling_are_not_the_highest(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `freeze` has it: they take the shortcut the other way round."""
    monkeypatch.setattr(long, "ceiling_of", {"bars_unified_tuning": 0.35}.get)
    keep(small, judged(small, [(0.5,), (0.9, 0.2), (0.9, 0.4), (0.9, 0.3), (0.5, 0.6)]))
    page = results_page(measured(small / "results", small), [], [])
    lines = [line for line in page.splitlines() if line.startswith("| LfF")]
    assert [(line.split("|")[-4].strip(), line.split("|")[-2].strip()) for line in lines] == [
        ("25.0", "above the ceiling"),
        ("25.0", "highest"),
        ("25.0", ""),
    ]
    assert "above the ceiling of 35.0 %: more is had from the shortcut alone" in " ".join(page.split())


def test_the_ceiling_is_that_of_the_protocol() -> None:
    assert ceiling_of("colored_mnist_unified_tuning") == load_protocol("colored_mnist").ceiling == 0.77
    assert ceiling_of("waterbirds100_unified_tuning") is None
    assert ceiling_of("colored_mnist_tuning") is None


def test_contenders_of_one_method_are_told_apart_by_what_the_protocol_fixes() -> None:
    """Not by what is drawn, nor where a method competes once."""
    assert sets_apart("colored_mnist_unified_tuning") == {"ipg": ("every",), "dair": ("augment",)}
    assert sets_apart("waterbirds100_unified_tuning") == {"erm": ("class_weighted",)}
    assert sets_apart("colored_mnist_tuning") == {}


@pytest.mark.usefixtures("bars", "one_thread", "own_random_state")
def test_from_the_protocol_to_the_frozen_study(small: Path) -> None:
    """Real rows: what is frozen has the highest worst group among them."""
    study = load_study(small / "bars_unified_tuning.toml")
    folder = small / "results" / study.name
    tally = run_study(study, folder, device="cpu", workers=1, console=Console(file=io.StringIO()))
    assert (tally.done, tally.failed) == (5, 0)
    assert freeze(small) == 0
    rows = [row for row in read_rows(folder / "trials.jsonl") if row["method"] == "lff"]
    assert {row["split"] for row in rows} == {"validation"}
    best = max(row["metrics"]["worst_group"] for row in rows)
    (chosen,) = [arm["config"]["options"] for arm in frozen(small)["arm"] if arm["method"] == "lff"]
    (kept,) = [row for row in rows if row["config"]["amplification"] == chosen["amplification"]]
    assert kept["metrics"]["worst_group"] == best
