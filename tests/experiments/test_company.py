"""Who else computes on a GPU, by a stand-in for the driver's program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ipg.experiments import company
from ipg.experiments.attempt import Job
from ipg.experiments.company import others_on

OURS, OTHER = "GPU-5ebe0a1c-1111-2222-3333-444455556666", "GPU-00000000-1111-2222-3333-444455556666"
GPU = torch.device("cuda")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A GPU, and a program that prints the file `list` beside it and counts how often it was asked."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/list\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    properties = SimpleNamespace(uuid=OURS.removeprefix("GPU-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    company._list.cache_clear()
    yield tmp_path
    company._list.cache_clear()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), 0),  # as in a container that is told of nobody
        ((f"{OURS}, 17, python",), 0),
        ((f"{OURS}, 17, python", f"{OURS}, 4711, /opt/a, b/python -m x"), 1),
        ((f"{OURS}, 17, python", f"{OURS}, 18, [Not Found]", f"{OURS}, 19, [Insufficient Permissions]"), 2),
        ((f"{OURS}, 17, python", f"{OTHER}, 18, python"), 0),
        ((f"{OURS}, 17, python", f"{OURS}, 5, nvidia-cuda-mps-server"), 0),
        ((f"{OURS}, 17, python", f"{OURS}, {os.getppid()}, python"), 0),  # the command whose worker this may be
        (("No running processes found",), 0),
    ],
)
def test_processes_on_the_same_gpu_are_counted_without_ours(
    driver: Path, lines: tuple[str, ...], expected: int
) -> None:
    (driver / "list").write_text("".join(f"{line}\n" for line in lines))
    assert others_on(GPU) == expected
    assert (driver / "asked").read_text().startswith("--query-compute-apps=gpu_uuid,pid,process_name --format=csv,")


def test_the_driver_is_asked_once_a_minute(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (driver / "list").write_text(f"{OURS}, 17, python\n")
    clock = [600.0]
    monkeypatch.setattr(company, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for _ in range(3):
        others_on(GPU)
    assert len((driver / "asked").read_text().splitlines()) == 1
    clock[0] += 60.0
    others_on(GPU)
    assert len((driver / "asked").read_text().splitlines()) == 2


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 9\n", "not a program"])
def test_a_driver_that_cannot_be_asked_tells_of_nobody(driver: Path, text: str) -> None:
    (driver / "bin" / "nvidia-smi").write_text(text)
    assert others_on(GPU) == 0


def test_without_a_gpu_nobody_is_asked(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert others_on(torch.device("cpu")) == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert others_on(GPU) == 0
    assert not (driver / "asked").exists()


def test_a_small_companion_is_told_of_in_the_row(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the memory which is taken does not show."""
    monkeypatch.setattr("ipg.training.device.resolve_device", lambda name: GPU)
    trial = SimpleNamespace(config=SimpleNamespace(device="auto"))
    (driver / "list").write_text(f"{OURS}, 17, python\n")
    job = Job({}, "test", lambda *_, **__: {})
    assert not job._is_beside_others(trial)
    company._list.cache_clear()
    (driver / "list").write_text(f"{OURS}, 17, python\n{OURS}, 18, python\n")
    assert job._is_beside_others(trial)
    assert not Job({}, "test", job.run, sharing=2)._is_beside_others(trial)
