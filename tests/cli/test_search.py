"""`ipg search` as its user meets it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SMALL = ("--trials", "2", "--sampler", "random", "--workers", "1", "--every", "1", "--device", "cpu")


@pytest.fixture
def small(bars: list[str]) -> list[str]:
    """Options of a search of two trials that train in no time."""
    return [*SMALL, *bars]


@pytest.fixture
def searched(ipg: Callable[..., Any], small: list[str], tmp_path: Path) -> tuple[Path, str]:
    """A finished search, and what it said."""
    folder = tmp_path / "it"
    done = ipg("search", *small, "--output", folder, "--tau", "0")
    assert (done.code, done.err) == (0, "")
    return folder, done.out


def test_resume_goes_on_and_begins_nothing(ipg, assert_refused, small: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "there"
    says = (f"--resume: there is no search in {folder} to go on with; leave --resume out to begin one",)
    assert_refused("search", *small, "--output", folder, "--tau", "0", "--resume", says=says)
    assert not folder.exists()
    assert ipg("search", *small, "--output", folder, "--tau", "0").code == 0
    more = ipg("search", *small, "--output", folder, "--tau", "0", "--trials", "3", "--resume")
    assert more.code == 0
    assert "3 trials, 2 done" in more.out


@contextmanager
def over_at_once(seconds: float | None, over: threading.Event) -> Iterator[None]:
    """Time that is over before the first trial begins."""
    over.set()
    raise KeyboardInterrupt
    yield


@contextmanager
def over_soon(seconds: float | None, over: threading.Event) -> Iterator[None]:
    """Time that is over when the first trial ends."""
    over.set()
    yield


def test_a_search_whose_time_is_over_keeps_what_it_has_and_goes_on(
    ipg: Callable[..., Any], small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "there"
    command = ("search", *small, "--output", folder, "--tau", "0", "--limit", "1h")
    monkeypatch.setattr("ipg.experiments.search.run.ending", over_at_once)
    none = ipg(*command)
    assert (none.code, none.err) == (75, "")
    assert "the time is over, 0 of 2 trials are done" in none.out
    assert f"Report: {folder / 'report.html'}" in none.out.replace("\n", "")
    assert not (folder / "best.toml").exists()
    monkeypatch.setattr("ipg.experiments.search.run.ending", over_soon)
    one = ipg(*command)
    assert (one.code, one.err) == (75, "")
    assert "the time is over, 1 of 2 trials are done" in one.out
    assert "Best: trial 0" in one.out
    assert (folder / "best.toml").exists()
    monkeypatch.undo()
    assert ipg(*command).code == 0


def test_a_limit_is_a_time(assert_refused: Callable[..., str]) -> None:
    assert_refused("search", "--limit", "55", says=("--limit 55: expected a time such as 90s, 30m or 2h",))


def test_a_search_says_how_it_goes_and_what_it_found(searched: tuple[Path, str]) -> None:
    folder, out = searched
    lines = " ".join(out.split())
    assert lines.startswith("bars-ipg: 2 trials, 0 done [1/2] trial 0: alpha 0.")
    values = [json.loads(line)["value"] for line in (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(f": {100 * value:.1f} % in " in lines for value in values)
    assert f", {100 * max(values):.1f} % (worst_group) Report: " in lines
    assert {"best.toml", "report.html", "history.svg", "search.journal", "trials.jsonl"} <= {
        file.name for file in folder.iterdir()
    }


def test_what_is_given_is_fixed_and_the_rest_is_found(searched: tuple[Path, str]) -> None:
    found = tomllib.loads((searched[0] / "best.toml").read_text(encoding="utf-8"))
    assert (found["tau"], found["epochs"], found["batch"]) == (0.0, 1, 32)
    assert 0.05 <= found["alpha"] <= 0.95  # with every 1, the paper's range
    assert not {"seed", "device", "data_path"} & set(found)


def test_trials_do_not_begin_again_unless_told_to(
    searched: tuple[Path, str], small: list[str], ipg: Callable[..., Any], tmp_path: Path
) -> None:
    """Settings with which training collapses are worth nothing, and not what half their learning rate is worth."""
    told, file = tmp_path / "told", tmp_path / "base.toml"
    file.write_text("restarts = 2\n", encoding="utf-8")
    assert ipg("search", *small, "--output", told, "--config", file).code == 0
    for folder, restarts in ((searched[0], 0), (told, 2)):
        rows = [json.loads(line) for line in (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
        assert {row["config"]["restarts"] for row in rows} == {restarts}
        assert "restarts" not in tomllib.loads((folder / "best.toml").read_text(encoding="utf-8"))


def test_its_file_trains(searched: tuple[Path, str], ipg: Callable[..., Any], tmp_path: Path) -> None:
    done = ipg("train", "--config", searched[0] / "best.toml", "--device", "cpu", "--output", tmp_path / "run")
    assert done.code == 0
    assert (tmp_path / "run" / "done").exists()


def test_what_it_says_to_train_with_finds_the_data(ipg: Callable[..., Any], small: list[str], tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    done = ipg("search", *small, "--output", "it", "--data-path", "my data")
    told = done.out.splitlines()[-1]
    assert told == "Train with it: ipg train --config it/best.toml --data-path 'my data'"
    _, *arguments = shlex.split(told.partition(": ")[2])
    assert ipg(*arguments, "--device", "cpu", "--output", "run").code == 0


def test_the_same_command_again_has_nothing_to_do(
    searched: tuple[Path, str], small: list[str], ipg: Callable[..., Any]
) -> None:
    before = (searched[0] / "trials.jsonl").read_bytes()
    done = ipg("search", *small, "--output", searched[0], "--tau", "0")
    assert (done.code, done.out.splitlines()[0]) == (0, "bars-ipg: 2 trials, 2 done")
    assert (searched[0] / "trials.jsonl").read_bytes() == before


def test_another_search_in_its_folder(
    searched: tuple[Path, str], small: list[str], assert_refused: Callable[..., str]
) -> None:
    assert_refused(
        "search", *small, "--output", searched[0], "--tau", "0.5",
        says=("bars-ipg is another search", "tau was 0.0 and is now 0.5", "--output"),
    )  # fmt: skip


def test_a_search_on_a_path_has_a_folder_in_searches(ipg: Callable[..., Any], photos: Path, tmp_path: Path) -> None:
    data = ["--data", photos / "photos.csv", "--pairs", photos / "pairs.csv", "--size", "16", "--model", "small_cnn"]
    done = ipg("search", *SMALL, *data, "--epochs", "2", "--batch", "8", "--objective", "pairs")
    assert (tmp_path / "searches" / "photos-ipg" / "report.html").exists(), done


def test_a_search_in_vain_says_so(
    ipg: Callable[..., Any], assert_refused: Callable[..., str], small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.experiments.search import trial

    monkeypatch.setattr(trial, "value_of", lambda objective, row: 0.0)
    says = ("no trial got above 0 (accuracy of the worst group", "nothing to train with", "it/report.html")
    assert_refused("search", *small, "--output", "it", says=says)
    assert "No trial got above 0" in Path("it/report.html").read_text(encoding="utf-8")
    assert not Path("it/best.toml").exists()


def test_a_search_that_others_are_still_at_is_not_in_vain(
    ipg: Callable[..., Any], assert_refused: Callable[..., str], small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.experiments.search import trial
    from ipg.experiments.search.storage import FileHolds

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trial, "train", stopped)
        assert ipg("search", *small, "--output", "it", "--trials", "1").code == 130
    holds = FileHolds(Path("it/locks"))
    assert holds.hold(0)
    says = ("no trial is worth anything yet; give the same command again when the others are done",)
    assert_refused("search", *small, "--output", "it", "--trials", "1", says=says)
    holds.close()
    assert ipg("search", *small, "--output", "it", "--trials", "1").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "3"], "seed 3 may be among those that results are reported on; a search takes one from 100 on"),
        (
            ["--method", "erm", "--learning-rate", "1e-3", "--weight-decay", "0"],
            "there is nothing to search for with method 'erm': name a setting",
        ),
        (["--vary", "alhpa=0:1"], "did you mean alpha?"),
        (["--alpha", "0.1", "--vary", "alpha=0:0.5"], "it is given, too: leave out one of the two"),
        (["--sampler", "grid"], "there is no sampler 'grid'; there are tpe, random"),
        (["--objective", "search"], "objective 'search' cannot be measured on bars: it has no split search"),
        (["--workers", "0"], "0 workers are asked for; expected at least 1"),
        (["--storage", "mysql://bob:s3cret@db/x"], "--storage mysql://db/x: expected postgresql://USER@HOST/DATABASE"),
    ],
)
def test_mistakes_are_one_clear_line(
    assert_refused: Callable[..., str], small: list[str], arguments: list[str], says: str
) -> None:
    said = assert_refused("search", *small, *arguments, says=(says,))
    assert "s3cret" not in said


def test_optuna_is_asked_for_before_torch_is_loaded() -> None:
    code = """
import sys
sys.modules["optuna"] = None
from typer.testing import CliRunner
from ipg.cli import app
done = CliRunner().invoke(app, ["search", "--trials", "1"])
print(done.exit_code, "torch" in sys.modules, done.stderr)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("2 False ipg: a search needs Optuna, which is not installed: pip install 'invari"), (
        done.stdout + done.stderr
    )
