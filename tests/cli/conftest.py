"""The program as its user meets it, two finished runs on the embedded images, and a data set that trains in no time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipg.cli import app

TINY = ("--epochs", "1", "--batch", "512", "--pairs", "8", "--held-out-pairs", "8")
MOST_LINES = 5
"""How long an error may be."""


class Finished:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run(*arguments: object) -> Finished:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="ipg")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Finished(result.exit_code, result.stdout, result.stderr)


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **changes}


def python_m_ipg(*arguments: object, **changes: Any) -> Finished:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ipg", *(str(argument) for argument in arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        **{"env": environment(), **changes},
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder of its own, on a terminal of 80 columns, without a data set of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("IPG_MNIST", str(tmp_path / "no-mnist"))
    monkeypatch.setenv("IPG_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("IPG_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def ipg() -> Callable[..., Finished]:
    """Runs a command in this process."""
    return run


@pytest.fixture(scope="session")
def process() -> Callable[..., Finished]:
    """Runs a command as `python -m ipg`."""
    return python_m_ipg


@pytest.fixture(scope="session")
def refused() -> Callable[..., str]:
    """Runs a command that has to end in a few clear lines; returns them."""

    def refuse(*arguments: object, says: tuple[str, ...]) -> str:
        done = run(*arguments)
        assert done.code == 2, done
        lines = done.err.splitlines()
        assert 1 <= len(lines) <= MOST_LINES, done
        assert all(line.startswith("ipg: ") for line in lines), done
        assert "Traceback" not in done.err + done.out
        assert "Errno" not in done.err
        for part in says:
            assert part in done.err, done
        return done.err

    return refuse


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    """Settings that train in a second or two."""
    return TINY


@pytest.fixture(scope="session")
def embedded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs `guided` and `plain` on the embedded images; not to be changed."""
    folder = tmp_path_factory.mktemp("embedded")
    for name, method in (("guided", "ipg"), ("plain", "erm")):
        done = run("train", *TINY, "--method", method, "--output", folder / name)
        assert done.code == 0, done
        (folder / f"{name}.txt").write_text(done.out, encoding="utf-8")
    return folder


@pytest.fixture
def bars(make_table: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A data set of 200 small images by the name of `bars`; the options that train on it."""
    from ipg.data.load import DATASETS

    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))
    return ["--data", "bars", "--epochs", "1", "--batch", "32", "--pairs", "8", "--held-out-pairs", "8"]


@pytest.fixture
def finished(bars: list[str], tmp_path: Path) -> Path:
    """The folder of a finished run on `bars`, to do with as one likes."""
    folder = tmp_path / "finished"
    done = run("train", *bars, "--output", folder)
    assert done.code == 0, done
    return folder
