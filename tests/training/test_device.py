"""The device, its precision and its generators."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ipg.config import RunConfig
from ipg.training.device import (
    autocast_dtype,
    numerics,
    own_randomness,
    random_state,
    resolve_device,
    seed_generators,
    set_random_state,
)

CPU = torch.device("cpu")


def see(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str) -> None:
    see(monkeypatch, cuda=cuda, mps=mps)
    assert resolve_device("auto") == torch.device(expected)
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    see(monkeypatch, cuda=False, mps=False)
    message = f"device '{name}' is asked for and torch sees none here; use --device cpu"
    with pytest.raises(ValueError, match=message):
        resolve_device(name)


def test_a_device_of_no_such_name() -> None:
    with pytest.raises(ValueError, match="there is no device 'gpu'; expected one of auto, cpu, cuda, mps"):
        resolve_device("gpu")


def test_autocast() -> None:
    assert autocast_dtype(RunConfig(precision="bf16")) == torch.bfloat16
    assert autocast_dtype(RunConfig(precision="fp32")) is None
    assert autocast_dtype(RunConfig(precision="tf32")) is None


def switches() -> dict[str, Any]:
    """What a run on a GPU sets; readable without one."""
    backends: Any = torch.backends
    return {
        "matmul": backends.cuda.matmul.fp32_precision,
        "conv": backends.cudnn.conv.fp32_precision,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
    }


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9")
@pytest.mark.parametrize(("precision", "told"), [("fp32", "ieee"), ("tf32", "tf32"), ("bf16", "tf32")])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_gpus_switches_are_set_and_set_back(precision: str, told: str, deterministic: bool) -> None:
    before = switches()
    found: dict[str, Any] = {}

    def run() -> None:
        with numerics(RunConfig(precision=precision, deterministic=deterministic), torch.device("cuda")):
            found.update(switches())
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run()
    assert (found["matmul"], found["conv"]) == (told, told)
    assert (found["deterministic"], found["benchmark"]) == (deterministic, not deterministic)
    assert switches() == before


@pytest.mark.parametrize(("iterations", "searched"), [(None, True), (1999, False), (2000, True)])
def test_short_runs_do_not_try_all_kernels(iterations: int | None, searched: bool) -> None:
    with numerics(RunConfig(), torch.device("cuda"), iterations=iterations):
        assert torch.backends.cudnn.benchmark is searched


IMPORTED = """
import importlib, os
import ipg.training.loop
from ipg.training import device
print(os.environ["CUBLAS_WORKSPACE_CONFIG"])
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
importlib.reload(device)
print(os.environ["CUBLAS_WORKSPACE_CONFIG"])
"""


def test_what_deterministic_products_need_is_there_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch looks once in a process: a deterministic run may follow one that is not. What the user has set stays."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    ran = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [":4096:8", ":16:8"]


def test_a_callers_choice_to_be_warned_comes_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with numerics(RunConfig(deterministic=True), torch.device("cuda")):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("precision", "told"), [("fp32", False), ("tf32", True)])
def test_the_switches_of_torch_2_8(monkeypatch: pytest.MonkeyPatch, precision: str, told: bool) -> None:
    matmul = SimpleNamespace(allow_tf32="before")
    cudnn = SimpleNamespace(allow_tf32="before", benchmark="before")
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=matmul))
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    with numerics(RunConfig(precision=precision), torch.device("cuda")):
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark) == (told, told, True)
    assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark) == ("before",) * 3


def test_on_a_cpu_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[Any] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *given, **options: touched.append(given))
    with numerics(RunConfig(precision="tf32", deterministic=True), CPU):
        assert not touched
    assert not touched


def test_generators_are_seeded_saved_and_restored() -> None:
    seed_generators(5, CPU)
    state = random_state(CPU)
    first = torch.rand(3)
    assert not torch.equal(torch.rand(3), first)
    set_random_state(state)
    assert torch.equal(torch.rand(3), first)
    seed_generators(5, CPU)
    assert torch.equal(torch.rand(3), first)
    seed_generators(6, CPU)
    assert not torch.equal(torch.rand(3), first)


def test_the_callers_generators_are_left_alone() -> None:
    before = torch.get_rng_state()

    def run() -> None:
        with own_randomness(CPU):
            seed_generators(1, CPU)
            torch.rand(3)
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run()
    assert torch.equal(torch.get_rng_state(), before)


PAGES = """
import resource, sys, torch
from ipg.training.device import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**23)  # 32 MiB: 8,192 pages, unless they are large
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with keep_freed_memory():
    print(min(faults() for _ in range(6)))  # something small may come to lie where the block was, once
"""
RESIDENT = """
import torch
from pathlib import Path
from ipg.config import RunConfig
from ipg.training.device import keep_freed_memory, numerics
def held():  # MiB
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
def work():
    del (block := [torch.ones(2**23) for _ in range(10)])[:]  # 320 MiB, freed again
    return held()
device = torch.device("cpu")
before = work()
with numerics(RunConfig(), device):
    with keep_freed_memory():  # as the first of two stages
        work()
    inside = work()
print(before, inside, held())
"""


def told(script: str, **settings: str) -> list[int]:
    """The numbers that `script` prints in a process whose C library is told `settings` and nothing else."""
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={**rest, **settings}, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_freed_memory_is_used_again_instead_of_coming_anew() -> None:
    (kept,) = told(PAGES)
    (left_alone,) = told(PAGES, MALLOC_ARENA_MAX="8")  # a setting of the user's, so nothing is changed
    assert kept < 100
    assert left_alone > 10 * max(kept, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_after_a_run_freed_memory_goes_back() -> None:
    before, inside, left = told(RESIDENT)
    assert inside > before + 250  # also after a run inside it has ended
    assert left < before + 80
