"""Real processes, killed at whatever moment and run again until they are done, end with an unbroken run's bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from forking import Forked, Template
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

COMMON = ["--epochs", "3", "--batch", "1024", "--held-out-pairs", "50", "--device", "cpu"]
KINDS = {
    "ipg": ["--method", "ipg", "--every", "4", "--jitter", "0.1", "--margin", "2x"],
    "joint": ["--method", "joint", "--every", "2", "--selection", "pairs"],
}
KILLS = 5
"""At least so many of each kind."""
FILES = {
    "config.json", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json", "done", "lock",
}  # fmt: skip


Start = Callable[[str, Path], Forked]


@pytest.fixture(scope="module")
def start(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Trains in a process of its own."""

    def begin(kind: str, folder: Path) -> Forked:
        log = tmp_path_factory.mktemp("logs") / "log"
        line = ["train", *COMMON, *KINDS[kind], "--output", folder]
        return template.start("-m", "ipg", *line, log=log, out=Path(os.devnull))

    return begin


def finish(process: Forked) -> tuple[int, str]:
    """Its exit status and what it said last."""
    return process.wait(300), process.log.read_text(encoding="utf-8")


@dataclass
class Unbroken:
    """A run that nobody disturbed."""

    folder: Path
    seconds: float


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unbroken(start: Start, kind: str, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    folder = tmp_path_factory.mktemp("unbroken") / kind
    begun = time.monotonic()
    assert finish(start(kind, folder)) == (0, "")
    return Unbroken(folder, time.monotonic() - begun)


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def assert_same(folder: Path, expected: Path) -> None:
    one, other = (load_file(path / "model.safetensors") for path in (folder, expected))
    assert list(one) == list(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert rows(folder) == rows(expected)
    assert {path.name for path in folder.iterdir()} == FILES  # and nothing that a kill has left


def test_killed_at_random_moments(start: Start, kind: str, unbroken: Unbroken, tmp_path: Path) -> None:
    moments = random.Random(f"{kind} 7")
    kills = runs = 0
    while kills < KILLS:
        runs += 1
        folder = tmp_path / str(runs)
        while not (folder / "done").exists():
            process = start(kind, folder)
            try:
                status, said = process.wait(moments.uniform(0.1, unbroken.seconds)), ""
            except subprocess.TimeoutExpired:
                process.kill()
                status, said = finish(process)
                kills += status == -signal.SIGKILL
            else:
                _, said = finish(process)
            assert status in (0, -signal.SIGKILL), said
        assert finish(start(kind, folder)) == (0, "")  # once more: there is nothing left to do
        assert_same(folder, unbroken.folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop(start: Start, kind: str, number: signal.Signals, unbroken: Unbroken, tmp_path: Path) -> None:
    """Twice: once after the first epoch, once after the second."""
    folder = tmp_path / "run"
    for epoch in (1, 2):
        process = start(kind, folder)
        while process.poll() is None and not (folder / "metrics.jsonl").exists():
            time.sleep(0.02)
        while process.poll() is None and len(rows(folder)) < epoch:
            time.sleep(0.02)
        process.send_signal(number)
        status, said = finish(process)
        assert status == 130, said
        assert said.count("\n") == 1
        assert "stopped after" in said
        assert not (folder / "done").exists()
    assert finish(start(kind, folder)) == (0, "")
    assert_same(folder, unbroken.folder)


def test_a_run_in_use_is_left_alone(start: Start, tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"):
        status, said = finish(start("ipg", tmp_path))
    assert (status, said.count("\n")) == (2, 1)
    assert "is in use by another process" in said
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


# -- killed at each of its writes ------------------------------------------------------------------------------------

KILLED_AT = """
import os, signal, sys
from pathlib import Path

number, folder, helper = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
count, real = 0, Path.replace

def replace(path, target):
    global count
    count += 1
    if count == number:
        os.kill(os.getpid(), signal.SIGKILL)  # the new file is whole, and not yet in its place
    return real(path, target)

Path.replace = replace
exec(helper.read_text())
run(folder)
"""

HELPER = """
import torch
from ipg.config import RunConfig
from ipg.data import colored_fashion
from ipg.training.loop import train
from ipg.training.materials import gather

def run(folder):
    torch.set_num_threads(1)
    table = colored_fashion.load()
    table = table.take(torch.cat([table.indices(split)[:200] for split in table.splits]))
    config = RunConfig(method="ipg", epochs=2, batch=64, every=3, pairs=10, held_out_pairs=10, device="cpu")
    return train(config, gather(config, table=table), folder=folder)
"""


def test_killed_at_every_write(template: Template, tmp_path: Path) -> None:
    """The configuration; a checkpoint and metrics an epoch; weights, metrics, result and marker at the end."""
    script, helper = tmp_path / "script.py", tmp_path / "helper.py"
    script.write_text(KILLED_AT, encoding="utf-8")
    helper.write_text(HELPER, encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(HELPER, namespace)
    expected = tmp_path / "expected"
    namespace["run"](expected)
    writes = 1 + 2 * 2 + 4
    for number in range(1, writes + 2):
        folder = tmp_path / str(number)
        process = template.start(script, number, folder, helper, log=tmp_path / f"{number}.log")
        assert process.wait(120) == (-signal.SIGKILL if number <= writes else 0)
        if number <= writes:
            assert len([path for path in folder.iterdir() if path.name.endswith(".tmp")]) == 1
        namespace["run"](folder)
        assert_same(folder, expected)
