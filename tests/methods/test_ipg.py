"""IPG and its ablation Continuous under the one interface; the method itself is tested in tests/core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.guidance import Guidance
from ipg.methods import Setup
from ipg.methods.ipg import build_guidance


def bits(toy: Any, name: str, *, steps: int = 6, **settings: Any) -> tuple[Tensor, list[dict[str, float]]]:
    """All parameters after some steps, and what the steps reported."""
    model = toy.network()
    method = toy.method(name, model, optimizer=torch.optim.Adam(model.parameters(), lr=0.02), **settings)
    reports = [{k: v.item() for k, v in method.step(toy.batch(n)).items()} for n in range(steps)]
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), reports


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("margin", ["0.7", "0.5x"])
def test_continuous_is_ipg_where_tau_is_0(toy: Any, every: int, margin: str) -> None:
    ipg, reports = bits(toy, "ipg", tau=0.0, every=every, margin=margin)
    continuous, same = bits(toy, "continuous", tau=0.0, every=every, margin=margin)
    assert torch.equal(ipg, continuous)
    assert reports == same


def test_continuous_is_not_ipg_where_tau_is_large(toy: Any) -> None:
    """Some pairs agree, so at a tau of 0.9 the condition is met for IPG and never for Continuous."""
    ipg, reports = bits(toy, "ipg", tau=0.9)
    continuous, others = bits(toy, "continuous", tau=0.9)
    assert [report["violated"] for report in reports] == [0.0] * 6
    assert [report["violated"] for report in others] == [1.0] * 6
    assert not torch.equal(ipg, continuous)
    assert torch.equal(continuous, bits(toy, "continuous", tau=0.0)[0])  # its tau is 0 whatever is asked for


def test_continuous_is_never_strict(toy: Any, drawn: Any) -> None:
    """Members that are one image agree always: δ = 0 ≥ 0 is violated, δ > 0 would not be."""
    _, reports = bits(toy, "continuous", strict=True, pairs_from=drawn(shift=0.0))
    assert [report["violated"] for report in reports] == [1.0] * 6
    _, reports = bits(toy, "ipg", strict=True, pairs_from=drawn(shift=0.0))
    assert [report["violated"] for report in reports] == [0.0] * 6


def test_a_step_is_the_guidances_step(toy: Any, drawn: Any) -> None:
    settings = {"alpha": 0.3, "tau": 0.4, "margin": "0.9", "every": 2, "floor": 0.01}
    model = toy.network()
    guide = Guidance(
        model, torch.optim.Adam(model.parameters(), lr=0.02), alpha=0.3, tau=0.4, margin=0.9, every=2, floor=0.01
    )
    source = drawn()
    for number in range(6):
        batch = toy.batch(number)
        guide.step(lambda: torch.nn.functional.cross_entropy(model(batch.image), batch.label), source)  # noqa: B023
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(bits(toy, "ipg", **settings)[0], expected)


def test_every_setting_reaches_the_guidance(toy: Any) -> None:
    settings: dict[str, Any] = {
        "alpha": 0.21, "tau": 0.32, "margin": "0.43", "every": 3, "floor": 0.54, "batch_norm": "eval",
        "distance": "features", "strict": True, "jitter": 0.65,
    }  # fmt: skip
    model = toy.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup = Setup(model, optimizer, torch.nn.CrossEntropyLoss(), RunConfig(**settings), autocast=torch.bfloat16)
    guide = build_guidance(setup)
    found = {name: getattr(guide, name) for name in settings} | {"margin": f"{guide.margin.item():.2f}"}
    assert found == settings
    assert guide.autocast == torch.bfloat16
    assert build_guidance(setup, tau=0.0, strict=False).tau == 0.0
