"""A daemon of MPS for workers that share a GPU, by a program of NVIDIA's name that writes down how it is called."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import wait_for

from ipg.experiments import mps
from ipg.experiments.mps import LOGS, PIPES, side_by_side
from ipg.experiments.runner import Tally, run_study
from ipg.experiments.store import read_rows

PROGRAM = """\
#!/bin/sh
said="$*"
[ -n "$said" ] || read -r said
echo "$said|$CUDA_MPS_PIPE_DIRECTORY|$CUDA_MPS_LOG_DIRECTORY|${CUDA_VISIBLE_DEVICES-all}" >> "$CALLS"
[ "$said" = quit ] || exec sh -c "$START"
"""
SEES = f"import os; print(os.environ.get({PIPES!r}))"


class Program:
    """How NVIDIA's program was called: what it was told, where, and with which GPUs."""

    def __init__(self, folder: Path) -> None:
        self.file, self.calls = folder / mps.PROGRAM, folder / "calls"
        self.file.write_text(PROGRAM, encoding="utf-8")
        self.file.chmod(0o755)

    @property
    def called(self) -> list[list[str]]:
        return [line.split("|") for line in self.calls.read_text("utf-8").splitlines()] if self.calls.exists() else []

    @property
    def told(self) -> list[str]:
        return [call[0] for call in self.called]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def program(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A machine with one GPU, as far as this process can tell, and NVIDIA's program."""
    home = tmp_path / "bin"
    home.mkdir()
    made = Program(home)
    for name in (PIPES, LOGS, mps.SWITCH, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(home), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(made.calls))
    monkeypatch.setenv("START", "exit 0")
    monkeypatch.setattr(mps, "USUAL", tmp_path / "nobody" / "control")
    monkeypatch.setattr(mps, "CLIENT", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    return made


def sees() -> str:
    """Where a process that is started now looks for the daemon."""
    return subprocess.run([sys.executable, "-c", SEES], capture_output=True, text=True, check=True).stdout.strip()


def nothing_is_left(temporary: Path) -> bool:
    return not list(temporary.iterdir()) and PIPES not in os.environ and LOGS not in os.environ


# -- started -----------------------------------------------------------------------------------------------------------


def test_a_daemon_for_as_long_as_processes_share_a_gpu(program: Program, temporary: Path) -> None:
    lines: list[str] = []
    with side_by_side(4, "auto", lines.append) as used:
        assert used
        assert program.told == ["-d"]
        _, pipes, logs, _ = program.called[0]
        assert pipes == os.environ[PIPES] == sees()
        assert logs == os.environ[LOGS]
        for folder in (Path(pipes), Path(logs), Path(pipes).parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert lines == ["4 processes share the GPU by NVIDIA's Multi-Process Service"]
    assert program.told == ["-d", "quit"]
    assert program.called[1][1] == pipes
    assert nothing_is_left(temporary)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_daemon_quits_whatever_happens(program: Program, temporary: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), side_by_side(2, "cuda", lambda line: None):
        raise error
    assert program.told == ["-d", "quit"]
    assert nothing_is_left(temporary)


def test_the_daemon_quits_when_its_runner_is_killed(program: Program, temporary: Path) -> None:
    script = (
        "import sys, tempfile, time, torch; from pathlib import Path; from ipg.experiments import mps\n"
        "torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1\n"
        "mps.CLIENT, mps.USUAL, tempfile.tempdir = '', Path('nobody'), sys.argv[1]\n"
        "with mps.side_by_side(2, 'cuda', lambda line: print(line, flush=True)): time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(temporary)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        assert "Multi-Process Service" in runner.stdout.readline()
        runner.send_signal(signal.SIGKILL)
    wait_for(lambda: program.told == ["-d", "quit"] and nothing_is_left(temporary))


def test_what_the_user_has_set_is_set_again(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOGS, "logs")
    with side_by_side(2, "cuda", lambda line: None):
        assert os.environ[LOGS] != "logs"
    assert os.environ[LOGS] == "logs"
    assert PIPES not in os.environ


@pytest.mark.parametrize(("visible", "seen"), [("1,3", "all"), ("GPU-7e1,GPU-8f2", "GPU-7e1,GPU-8f2")])
def test_the_daemon_does_not_count_gpus_anew(
    program: Program, monkeypatch: pytest.MonkeyPatch, visible: str, seen: str
) -> None:
    """Clients name GPUs by number as they do without it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    lines: list[str] = []
    with side_by_side(4, "cuda", lines.append):
        assert program.called[0][3] == seen
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
    assert lines == ["4 processes share 2 GPUs by NVIDIA's Multi-Process Service"]


def test_workers_find_the_daemon(
    stubs: Any, notes: Path, tmp_path: Path, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = run_study(stubs.study(2), tmp_path / "rows", data_path=str(notes), workers=2, run=stubs.pipes)
    assert tally == Tally(2, 0, 0)
    rows = read_rows(tmp_path / "rows" / "trials.jsonl")
    assert [row["pipes"] for row in rows] == [program.called[0][1]] * 2
    assert [(row["sharing"], row["mps"]) for row in rows] == [(2, True)] * 2
    assert program.told == ["-d", "quit"]
    assert "2 processes share the GPU by NVIDIA's Multi-Process Service\n" in capsys.readouterr().out


def test_a_row_says_nothing_of_it_where_processes_take_turns(
    stubs: Any, notes: Path, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mps.SWITCH, "0")
    run_study(stubs.study(2), tmp_path / "rows", data_path=str(notes), workers=2, run=stubs.pipes)
    rows = read_rows(tmp_path / "rows" / "trials.jsonl")
    assert [(row["pipes"], row["sharing"], "mps" in row) for row in rows] == [(None, 2, False)] * 2
    assert program.told == []


# -- not started -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "client", "why"),
    [
        ("exit 3", "", "exit status 3"),
        ("exec sleep 60", "", "nothing for 0.5 s"),
        ("exit 0", "raise SystemExit(1)", "exit status 1"),
    ],
    ids=["fails", "hangs", "serves nobody"],
)
def test_a_daemon_that_does_not_start(
    program: Program, temporary: Path, monkeypatch: pytest.MonkeyPatch, start: str, client: str, why: str
) -> None:
    monkeypatch.setenv("START", start)
    monkeypatch.setattr(mps, "CLIENT", client)
    if "sleep" in start:
        monkeypatch.setattr(mps, "SECONDS", 0.5)
    lines: list[str] = []
    with side_by_side(4, "cuda", lines.append) as used:
        assert not used
        assert PIPES not in os.environ
        wait_for(lambda: program.told == ["-d", "quit"] and nothing_is_left(temporary))
    (line,) = lines
    assert line.startswith("4 processes share the GPU in turns: NVIDIA's Multi-Process Service does not start")
    assert f"({why};" in line


def test_a_program_that_cannot_be_run(program: Program) -> None:
    program.file.write_bytes(b"\x7fELF")
    lines: list[str] = []
    with side_by_side(4, "cuda", lines.append) as used:
        assert not used
    assert "Exec format error" in lines[0]


@pytest.mark.parametrize(
    ("count", "device", "variables"),
    [
        (1, "cuda", {}),
        (4, "cpu", {}),
        (4, "cuda", {mps.SWITCH: "0"}),
        (4, "cuda", {PIPES: "/run/mine"}),
        (4, "cuda", {"PATH": "/nowhere"}),
    ],
    ids=["one worker", "cpu", "switched off", "the user's own", "no program"],
)
def test_no_daemon(
    program: Program,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    device: str,
    variables: dict[str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    with side_by_side(count, device, lines.append) as used:
        assert not used
        assert os.environ.get(PIPES) == variables.get(PIPES)
        assert not list(temporary.iterdir())
    assert program.told == lines == []
    assert os.environ.get(PIPES) == variables.get(PIPES)


def test_no_daemon_beside_one_at_the_usual_place(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setattr(mps, "USUAL", tmp_path / "control")
    with side_by_side(4, "cuda", print) as used:
        assert not used
    assert program.told == []


def test_no_daemon_on_an_apple_gpu(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with side_by_side(4, "mps", print) as used:
        assert not used
    assert program.told == []
