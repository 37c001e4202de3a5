"""No step asks the device for a value: under fake tensors, which have none, any `bool(tensor)` or `.item()` raises."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F

from ipg import guidance
from ipg.guidance import Guidance, Pairs, Report, TaskScale

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def network(device: str = "cpu") -> nn.Sequential:
    layers = [
        nn.Conv2d(3, 4, 3, device=device),
        nn.BatchNorm2d(4, device=device),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3, device=device),
    ]
    return nn.Sequential(*layers)


def run(optimizer: Any, *, device: str = "cpu", iterations: int = 4, plain: bool = False, **options: Any) -> Report:
    """Some iterations of a small image network."""
    model = network(device)
    guide = Guidance(model, optimizer(model.parameters()), **options)
    x, y = torch.randn(8, 3, 8, 8, device=device), torch.zeros(8, dtype=torch.long, device=device)
    first, second = torch.randn(2, 6, 3, 8, 8, device=device)
    pairs = Pairs(first, second, torch.arange(6, device=device) % 3)
    for _ in range(iterations):
        report = guide.step(lambda: F.cross_entropy(model(x), y), None if plain else pairs)
    return report


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Inside, what waits for the GPU raises."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)  # said once
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.fixture
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


OPTIMIZERS = {
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "the paper": {},
    "every": {"every": 3},
    "relative margin": {"margin": "0.5x"},
    "jitter": {"jitter": 0.01, "margin": "0.5x"},
    "strict, tau": {"strict": True, "tau": 0.3, "batch_norm": "eval"},
    "features": {"distance": "features"},
    "bf16": {"autocast": torch.bfloat16},
}


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_no_step_waits(optimizer: Any, options: dict[str, Any]) -> None:
    report = run(optimizer, **options)
    with pytest.raises(DataDependentOutputException):  # the mode was on: there is no value to read
        report.scale.item()


@pytest.mark.usefixtures("fake")
def test_no_plain_step_waits() -> None:
    report = run(OPTIMIZERS["adam fused"], plain=True)
    with pytest.raises(DataDependentOutputException):  # the mode was on
        report.task_loss.item()


@pytest.mark.usefixtures("fake")
def test_a_grad_scaler_waits_for_optimizers_that_are_not_fused() -> None:
    """It asks the host whether to skip them; fused ones look for themselves."""
    options = {"scaler": torch.amp.GradScaler("cpu"), "autocast": torch.bfloat16}
    run(OPTIMIZERS["adamw fused"], **options)
    with pytest.raises(DataDependentOutputException):
        run(OPTIMIZERS["sgd foreach"], **options)


@pytest.mark.usefixtures("fake")
def test_correct_and_rescale_do_not_wait(toys: ModuleType) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guide = Guidance(model, optimizer, every=2)
    pairs = Pairs(torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8), torch.arange(4))
    for _ in range(3):
        correction = guide.correct(pairs)
        for _ in range(2):
            model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        guide.rescale(correction)
        optimizer.step()
        optimizer.zero_grad()
    with pytest.raises(DataDependentOutputException):  # reading is for those who ask
        guide.skipped.item()


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("where", ["task_scale", "global_norm"])
def test_a_planted_item_is_caught(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The condition written as an `if`, or a norm read on the host, does not get through."""

    def branching(task_norm: Any, correction_norm: Any, disagreement: Any, *, tau: float, **_: Any) -> TaskScale:
        scale = torch.ones_like(task_norm) if disagreement >= tau else correction_norm
        return TaskScale(scale, *[torch.zeros_like(task_norm)] * 3)

    def reading(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.full((), math.sqrt(sum(t.square().sum().item() for t in tensors)))

    monkeypatch.setattr(guidance, where, {"task_scale": branching, "global_norm": reading}[where])
    with pytest.raises(DataDependentOutputException):
        run(OPTIMIZERS["sgd foreach"])


ON_CUDA = OPTIONS | {
    "auto": {"every": "auto"}
}  # an event is waited for, never the device; without one, a value is read


@needs_cuda
@pytest.mark.parametrize("options", ON_CUDA.values(), ids=ON_CUDA.keys())
def test_no_step_waits_on_cuda(options: dict[str, Any]) -> None:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3, fused=True, capturable=True)

    model = network("cuda").train()
    guide = Guidance(model, optimizer(model.parameters()), **options)
    x, y = torch.randn(8, 3, 8, 8, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
    first, second = torch.randn(2, 6, 3, 8, 8, device="cuda")
    pairs = Pairs(first, second, torch.arange(6, device="cuda") % 3)
    guide.step(lambda: F.cross_entropy(model(x), y), pairs)  # the optimizer makes its state
    with waiting_is_an_error():
        for _ in range(3):
            report = guide.step(lambda: F.cross_entropy(model(x), y), pairs)
        guide.step(lambda: F.cross_entropy(model(x), y), None)
        with pytest.raises(RuntimeError, match="synchroniz"):
            report.scale.item()
    assert math.isfinite(report.numbers()["scale"])


@needs_cuda
def test_a_step_is_captured_in_a_cuda_graph() -> None:
    """Five replays of a captured step equal five steps made one by one."""

    def fresh() -> tuple[nn.Module, Guidance]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
        return model, Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), margin="0.5x")

    x, y = torch.randn(8, 6, device="cuda"), torch.arange(8, device="cuda") % 3
    first, second = torch.randn(2, 6, 6, device="cuda")
    pairs = Pairs(first, second, torch.arange(6, device="cuda") % 3)
    eager, guide = fresh()
    for _ in range(8):
        guide.step(lambda: F.cross_entropy(eager(x), y), pairs)
    captured, its_guide = fresh()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            its_guide.step(lambda: F.cross_entropy(captured(x), y), pairs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        its_guide.step(lambda: F.cross_entropy(captured(x), y), pairs)
    for _ in range(5):
        graph.replay()
    for one, other in zip(captured.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(its_guide.correction.values, guide.correction.values, atol=1e-5, rtol=1e-4)
