"""A disk that is full while a run is saved: one clear line, nothing lost, and the run goes on when there is space."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from forking import Template
from safetensors.torch import load_file
from torch import Tensor

from ipg.config import RunConfig
from ipg.training.interrupt import Interrupted
from ipg.training.loop import train
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep

pytestmark = pytest.mark.slow

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, which holds two checkpoints and not three."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs root to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Take up all space but `leave` bytes."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - leave))
    return ballast


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("leave", [0, 100_000])
def test_the_last_checkpoint_stays_and_the_run_goes_on(
    small_disk: Path, leave: int, settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ipg", every=3)
    expected = train(config, materials(config))
    real, made = EagerStep.step, []

    def stopping(step: EagerStep, rows: Tensor) -> None:
        real(step, rows)
        made.append(1)
        if len(made) == 6:
            signal.raise_signal(signal.SIGTERM)

    folder = small_disk / "run"
    with monkeypatch.context() as patch:
        patch.setattr(EagerStep, "step", stopping)
        with pytest.raises(Interrupted):
            train(config, materials(config), folder=folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ballast = fill(small_disk, leave=leave)
    with pytest.raises(OSError, match="No space left on device") as caught:
        train(config, materials(config), folder=folder)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(folder / "checkpoint.safetensors")
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    ballast.unlink()
    outcome = train(config, materials(config), folder=folder)
    for name, value in outcome.model.state_dict().items():
        assert torch.equal(value, expected.model.state_dict()[name])
    assert not [name for name in names(folder) if name.endswith(".tmp")]


def test_no_space_for_the_first_file(small_disk: Path, settings: Make, materials: Gather) -> None:
    ballast = fill(small_disk, leave=0)
    config = settings(epochs=1)
    with pytest.raises(OSError, match="No space left on device"):
        train(config, materials(config), folder=small_disk / "run")
    ballast.unlink()
    train(config, materials(config), folder=small_disk / "run")
    assert (small_disk / "run" / "done").exists()


def test_the_command_says_it_in_one_line(template: Template, small_disk: Path, tmp_path: Path) -> None:
    def command(folder: Path, log: str) -> tuple[int, str]:
        settings = ["--epochs", "1", "--batch", "2048", "--held-out-pairs", "10", "--device", "cpu"]
        line = ["-m", "ipg", "train", *settings, "--output", folder]
        running = template.start(*line, log=tmp_path / log, out=Path(os.devnull))
        return running.wait(120), running.log.read_text(encoding="utf-8")

    ballast = fill(small_disk, leave=40_000)  # enough for the configuration
    code, said = command(small_disk / "run", "failed")
    assert code == 2
    assert said.count("\n") == 1
    assert str(small_disk / "run" / "checkpoint.safetensors") in said
    assert "no space left" in said.lower()
    assert names(small_disk / "run") == {"config.json", "lock"}
    ballast.unlink()
    assert command(small_disk / "run", "again") == (0, "")
    assert command(tmp_path / "elsewhere", "whole") == (0, "")
    one, other = (load_file(run / "model.safetensors") for run in (small_disk / "run", tmp_path / "elsewhere"))
    assert list(one) == list(other)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
