"""The program as a process of its own: exit statuses, signals, pipes and odd terminals."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from forking import Template

from ipg.threads import SPINS


def test_python_m_ipg_and_its_exit_statuses(process) -> None:
    done = process("--version")
    assert (done.code, done.out, done.err) == (0, f"ipg {version('invariance-pair-guidance')}\n", "")
    done = process("train", "--epochs", "0")
    assert (done.code, done.out, done.err) == (2, "", "ipg: epochs='0': expected at least 1\n")


def test_the_command_is_installed_and_is_the_same_program() -> None:
    ipg = Path(sys.executable).with_name("ipg")
    done = subprocess.run([str(ipg), "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"ipg {version('invariance-pair-guidance')}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="needs GNU's OpenMP, which torch brings along on Linux")
@pytest.mark.parametrize(
    ("given", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, 7), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0)]
)
def test_threads_sleep_soon_unless_the_environment_says_how_they_wait(
    process, given: dict[str, str], spins: int
) -> None:
    done = process("methods", "joint", env={**os.environ, "OMP_DISPLAY_ENV": "VERBOSE", **given})
    assert done.code == 0, done
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.err) == [str(spins)]


def test_a_terminal_without_greek_letters(process) -> None:
    done = process("methods", "joint", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.code == 0, done
    assert "order=sum               ? ? ? ? ? (g_T + g_A)" in done.out


@pytest.mark.parametrize("line", [["--version"], ["data", "list"], ["train", "--help"]], ids=" ".join)
def test_a_reader_that_leaves_early_is_no_error(line: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        command = [sys.executable, "-m", "ipg", *line]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_reader_that_leaves_in_the_middle_of_a_command_is_no_error_either(
    ipg, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*arguments: object, **options: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("ipg.data.mnist.fetch", leave)
    done = ipg("data", "fetch", "mnist")
    assert (done.code, done.err) == (1, "")


LINE = ["train", "--epochs", "3", "--batch", "256", "--pairs", "8", "--held-out-pairs", "8", "--output"]


def stop(number: signal.Signals, folder: Path) -> tuple[int, str, str]:
    """Train until the first epoch has ended, send the signal; exit status and what was printed after it."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-u", "-m", "ipg", *LINE, "run"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert any("epoch 1/3" in text for text in running.stdout)
        running.send_signal(number)
        out, err = running.communicate(timeout=120)
    return running.returncode, out, err


Stopped = tuple[Path, int, str, str]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[signal.Signals], Stopped]:
    """Stops a run by a signal, once for all tests: its folder, and what `stop` says."""
    made: dict[signal.Signals, Stopped] = {}

    def by(number: signal.Signals) -> Stopped:
        if number not in made:
            folder = tmp_path_factory.mktemp("stopped")
            made[number] = folder / "run", *stop(number, folder)
        return made[number]

    return by


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_a_run_with_its_state_saved(
    stopped: Callable[[signal.Signals], Stopped], number: signal.Signals
) -> None:
    folder, code, out, err = stopped(number)
    assert code == 130, err
    assert re.fullmatch(r"ipg: stopped after \d+ of 141 iterations; run the same command again to go on\n", err)
    assert "epoch 3/3" not in out
    names = {entry.name for entry in folder.iterdir()}
    assert {"checkpoint.safetensors", "metrics.jsonl"} <= names
    assert not {name for name in names if name.startswith(".") or name in ("done", "result.json", "model.safetensors")}


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_end(
    template: Template, stopped: Callable[[signal.Signals], Stopped], tmp_path: Path
) -> None:
    folder, _, _, err = stopped(signal.SIGINT)
    shutil.copytree(folder, tmp_path / "run")
    for name in ("run", "whole"):
        log, out = tmp_path / f"{name}.err", tmp_path / f"{name}.out"
        process = template.start("-m", "ipg", *LINE, name, folder=tmp_path, log=log, out=out)
        assert process.wait(300) == 0, log.read_text()
    resumed = (tmp_path / "run.out").read_text(encoding="utf-8")
    assert resumed.startswith(f"ipg on colored_fashion, from iteration {err.split()[3]} of 141\n")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "whole")]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["last_metrics"] == results[1]["last_metrics"]
