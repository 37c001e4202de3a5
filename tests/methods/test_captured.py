"""Every method runs as CUDA graphs, and ends where its iterations as written end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.methods import METHODS
from ipg.training.capture import WARM_UP
from ipg.training.loop import Outcome

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

ITERATIONS = WARM_UP + 3
DEVICE = "cuda"
ENGINE = "captured"

OPTIONS: dict[str, dict[str, Any]] = {
    "irm": {"anneal": 4},  # changes in an iteration that is replayed
    "vrex": {"anneal": 4},
    "fishr": {"anneal": 4},
    "epg": {"annotated": 1.0, "weight": 0.1},  # so that the penalty counts
    "gals": {"weight": 1.0},
    "gals_mask": {"weight": 1.0},
    "jtt": {"copies": 2},
}
"""Options by method, beside the defaults."""


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    """The graph of every replay in a test."""
    made: list[torch.cuda.CUDAGraph] = []
    real = torch.cuda.CUDAGraph.replay

    def replay(graph: torch.cuda.CUDAGraph) -> None:
        made.append(graph)
        real(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)
    return made


def parameters(outcome: Outcome) -> Tensor:
    """All parameters in one row, in double precision on the CPU."""
    return torch.cat([value.detach().double().cpu().flatten() for value in outcome.model.parameters()])


def settings(name: str) -> dict[str, Any]:
    """Of a short run by the method of that name."""
    model = "linear" if name == "ncm" else "small_cnn"  # whose features may be frozen
    shared: dict[str, Any] = {"model": model, "device": DEVICE, "precision": "fp32", "every": 1}
    shared["deterministic"] = True  # Adam makes a whole step of a gradient that is all rounding
    return shared | {"batch": 20, "steps": ITERATIONS, "options": OPTIONS.get(name, {})}


@pytest.mark.parametrize("name", METHODS)
def test_captured_iterations_end_where_written_ones_end(
    name: str, one_epoch: Callable[..., Outcome], replays: list[torch.cuda.CUDAGraph]
) -> None:
    written, replayed = (one_epoch(name, engine=engine, **settings(name)) for engine in ("eager", ENGINE))
    stages = 2 if METHODS[name].first_stage(RunConfig(method=name)) is not None else 1
    assert len(replays) == stages * (ITERATIONS - WARM_UP)  # all but those before the capture
    expected, found = parameters(written), parameters(replayed)
    assert torch.linalg.vector_norm(found - expected) <= 1e-4 * torch.linalg.vector_norm(expected)
    assert replayed.rows[0]["train"] == pytest.approx(written.rows[0]["train"], rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_deterministic_runs_end_with_the_same_bits(name: str, one_epoch: Callable[..., Outcome]) -> None:
    one, other = (one_epoch(name, engine=ENGINE, **settings(name)) for _ in range(2))
    assert torch.equal(parameters(one), parameters(other))
    assert one.rows[0]["train"] == other.rows[0]["train"]
