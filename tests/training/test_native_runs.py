"""Runs on a CPU over compiled kernels end where runs as written end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.models.native import Kernels, load, obstacle
from ipg.training.interrupt import Interrupted
from ipg.training.loop import train
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.skipif(obstacle(half=False) is not None, reason="needs a C++ compiler"),
]
in_half = pytest.mark.skipif(obstacle(half=True) is not None, reason="needs a processor with AVX512-BF16")

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the kernels were given, call by call of those that are learnt from."""
    counts: list[int] = []
    real = Kernels.backward

    def backward(this: Kernels, images: Tensor, *rest: Any) -> list[Tensor]:
        counts.append(len(images))
        return real(this, images, *rest)

    monkeypatch.setattr(Kernels, "backward", backward)
    return counts


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({"method": "erm", "optimizer": "sgd"}, [32, 32, 32, 24]),
        ({"method": "erm"}, [32, 32, 32, 24]),
        ({"method": "ipg", "every": 2, "margin": "0.1", "optimizer": "sgd"}, [10, 32, 32, 10, 32, 24]),
        ({"method": "groupdro", "optimizer": "sgd"}, [32, 32, 32, 24]),
    ],
)
def test_a_run_ends_where_it_ends_as_written(
    changes: dict[str, Any], batches: list[int], settings: Make, materials: Gather, seen: list[int]
) -> None:
    """The last batch of an epoch, which is smaller, goes the same way. With Adam see tests/training/test_capture.py."""
    config = settings(epochs=5, **changes)
    expected = train(config, materials(config))
    assert not seen
    found = train(config.with_changes(engine="compiled"), materials(config))  # 20 iterations
    assert seen == 5 * batches
    near = 1e-3 if config.optimizer == "adam" else 1e-5
    torch.testing.assert_close(weights(found.model), weights(expected.model), atol=near, rtol=near)
    for row, other in zip(found.rows, expected.rows, strict=True):
        assert row["train"] == pytest.approx(other["train"], rel=1e-2, abs=1e-3)
    assert found.result["config"] == expected.result["config"] | {"engine": "compiled"}


def test_the_time_to_compile_is_told_apart(
    settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPG_CACHE", str(tmp_path))  # where nothing is yet
    load.cache_clear()
    config = settings(epochs=1)
    assert train(config, materials(config)).result["preparing_seconds"] == 0
    result = train(config.with_changes(engine="compiled"), materials(config)).result
    assert 0 < result["preparing_seconds"] < result["seconds"]


@in_half
def test_half_precision_learns_the_same(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=5, every=2)
    losses = {}
    for precision, engine in (("fp32", "eager"), ("bf16", "eager"), ("bf16", "compiled")):
        outcome = train(config.with_changes(precision=precision, engine=engine), materials(config))
        losses[precision, engine] = outcome.rows[-1]["train"]["task_loss"]
    expected = losses.pop(("fp32", "eager"))
    assert list(losses.values()) == pytest.approx([expected, expected], rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=in_half)])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    precision: str, settings: Make, materials: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ipg", every=3, margin="2x", engine="compiled", precision=precision)
    whole = train(config, materials(config))
    count, real = 0, EagerStep.step

    def step(this: EagerStep, rows: Tensor) -> None:
        nonlocal count
        real(this, rows)
        count += 1
        if count == 5:  # inside the second epoch
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(EagerStep, "step", step)
    with pytest.raises(Interrupted):
        train(config, materials(config), folder=tmp_path / "run")
    found = train(config, materials(config), folder=tmp_path / "run")
    assert count == 12
    assert torch.equal(weights(found.model), weights(whole.model))


def test_other_networks_run_as_written_with_a_notice(settings: Make, materials: Gather, seen: list[int]) -> None:
    config = settings(model="linear")
    expected = train(config, materials(config))
    with pytest.warns(UserWarning, match="only mnist_cnn and small_cnn are compiled: this network runs as written"):
        found = train(config.with_changes(engine="compiled"), materials(config))
    assert torch.equal(weights(found.model), weights(expected.model))
    assert not seen
