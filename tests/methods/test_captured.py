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


@pytest.mark.parametrize("name", METHODS)
def test_captured_iterations_end_where_written_ones_end(
    name: str, one_epoch: Callable[..., Outcome], replays: list[torch.cuda.CUDAGraph]
) -> None:
    model = "linear" if name == "ncm" else "small_cnn"  # whose features may be frozen
    settings: dict[str, Any] = {"model": model, "device": DEVICE, "precision": "fp32", "every": 1}
    settings |= {"batch": 20, "steps": ITERATIONS, "options": OPTIONS.get(name, {})}
    written, replayed = (one_epoch(name, engine=engine, **settings) for engine in ("eager", ENGINE))
    stages = 2 if METHODS[name].first_stage(RunConfig(method=name)) is not None else 1
    assert len(replays) == stages * (ITERATIONS - WARM_UP)  # all but those before the capture
    expected, found = parameters(written), parameters(replayed)
    assert torch.linalg.vector_norm(found - expected) <= 1e-4 * torch.linalg.vector_norm(expected)
    assert replayed.rows[0]["train"] == pytest.approx(written.rows[0]["train"], rel=1e-2, abs=1e-3)
