"""Every method that says so trains through a compiled network, whatever was compiled for others before it.

Here without a GPU: torch traces the network and runs what it traced as it is, so that all ends in equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ipg.config import RunConfig
from ipg.methods import METHODS, method_class
from ipg.models.native import Kernels, obstacle
from ipg.training import assembly, engine, loop
from ipg.training.loop import Outcome

ABLE = [name for name in METHODS if method_class(name).compiles]
OPTIONS: dict[str, dict[str, Any]] = {"jtt": {"copies": 2}}
"""Options by method, beside the defaults."""


@pytest.fixture
def through_a_compiled_network(one_epoch: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Trains as `one_epoch` does with the engine `compiled`, on the CPU as it would on a GPU."""
    real, resolve = torch.compile, loop.resolve

    def compile(model: Any = None, **options: Any) -> Any:
        return real(model, backend="eager", **{name: options[name] for name in ("dynamic",) if name in options})

    def compiled(config: RunConfig, device: torch.device, *, processes: int) -> RunConfig:
        settled = resolve(config.with_changes(engine="eager"), device, processes=processes)
        return settled.with_changes(engine="compiled")

    def run(name: str, **settings: Any) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", compile)
            patch.setattr(loop, "resolve", compiled)
            for place in (assembly, engine, loop):
                patch.setattr(place, "traces", lambda config, device: True)
            return one_epoch(name, **settings)

    return run


@pytest.mark.parametrize(
    "order", [pytest.param(ABLE, id="in order"), pytest.param(ABLE[::-1], id="in reverse", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore")  # that torch gives of itself while it traces
@pytest.mark.usefixtures("one_thread")
def test_methods_one_after_the_other(
    order: list[str], one_epoch: Callable[..., Outcome], through_a_compiled_network: Callable[..., Outcome]
) -> None:
    torch.compiler.reset()
    for name in order:
        model = "linear" if name == "ncm" else "small_cnn"  # whose features may be frozen
        settings: dict[str, Any] = {"model": model, "optimizer": "sgd", "batch": 16, "every": 2}
        settings["options"] = OPTIONS.get(name, {})
        found, expected = through_a_compiled_network(name, **settings), one_epoch(name, **settings)
        assert found.result["config"]["engine"] == "compiled"
        for key, value in expected.model.state_dict().items():
            assert torch.equal(found.model.state_dict()[key], value), f"{name}: {key}"


@pytest.mark.skipif(obstacle(half=False) is not None, reason="needs a C++ compiler")
@pytest.mark.usefixtures("kernels")
def test_methods_by_kernels_for_a_cpu(one_epoch: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    used, backward = [], Kernels.backward
    monkeypatch.setattr(Kernels, "backward", lambda *given: (used.append(given), backward(*given))[1])
    for name in ABLE:
        if name == "ncm":  # whose features are to be frozen
            continue
        settings: dict[str, Any] = {"model": "small_cnn", "optimizer": "sgd", "batch": 16, "every": 2}
        settings["options"] = OPTIONS.get(name, {})
        found, expected = one_epoch(name, engine="compiled", **settings), one_epoch(name, **settings)
        assert found.result["config"]["engine"] == "compiled"
        assert used, name
        used.clear()
        for key, value in expected.model.state_dict().items():
            near = torch.isclose(found.model.state_dict()[key], value, rtol=1e-4, atol=1e-5)
            assert near.all(), f"{name}: {key}"
