"""The campaign on a GPU: its logic, on the CPU, where the same bits are promised as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from campaign import gpu
from torch import Tensor

from ipg.methods import METHODS
from ipg.training.stepping import EagerStep


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, own_random_state: None) -> Path:
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    return gpu.prepare(tmp_path)


def number(method: str, turn: int) -> int:
    """Of the case in which `method` has its turn of that number; odd ones are broken."""
    return turn * len(METHODS) + list(METHODS).index(method)


@pytest.mark.parametrize("turn", range(2 * gpu.ROUNDS))
@pytest.mark.parametrize("method", ["ipg", "jtt", "ncm", "gals_mask"])
def test_again_and_broken(here: Path, method: str, turn: int) -> None:
    assert gpu.attempt(here, 0, number(method, turn)) is None
    assert not (here / "case").exists()


def test_a_break_is_one(here: Path) -> None:
    with gpu.breaking(3):
        gpu.train(here / "run", "ipg")
    assert not (here / "run" / "model.safetensors").exists()
    gpu.train(here / "run", "ipg")
    assert (here / "run" / "model.safetensors").exists()


def test_other_bits_are_seen(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.attempt(here, 0, number("erm", 0)) is None
    real = EagerStep.__call__

    def call(step: EagerStep, rows: Tensor) -> None:
        real(step, rows)
        with torch.no_grad():
            next(step.method.setup.model.parameters()).mul_(1 + 1e-6)

    monkeypatch.setattr(EagerStep, "__call__", call)
    assert gpu.attempt(here, 0, number("erm", 2)) == "erm: checkpoint.safetensors differs"


def test_where_there_is_no_gpu_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.missing() == "there is no CUDA GPU here"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.missing() is None
