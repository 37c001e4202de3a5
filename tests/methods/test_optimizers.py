"""Optimizers that are taken up again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.methods.optimizers import load_optimizer


def trained(kind: Any, *, steps: int) -> tuple[nn.Conv2d, torch.optim.Optimizer]:
    """A layer in the layout channels last after some steps, its rate a tensor."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = kind(layer.parameters(), lr=torch.tensor(0.1))
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(1, 3, 5, 5)).square().sum().backward()
        optimizer.step()
    return layer, optimizer


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_rate_keeps_its_tensor_and_states_their_layout(kind: Any) -> None:
    _, before = trained(kind, steps=3)
    state = copy.deepcopy(before.state_dict())
    for entry in state["state"].values():
        entry.update({name: value.contiguous() for name, value in entry.items() if isinstance(value, Tensor)})
    state["param_groups"][0]["lr"] = torch.tensor(7.0)
    layer, after = trained(kind, steps=1)
    rate = after.param_groups[0]["lr"]
    load_optimizer(after, state)
    assert after.param_groups[0]["lr"] is rate
    for mine, theirs in zip(after.state.values(), before.state.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert after.state[layer.weight]["exp_avg"].stride() == layer.weight.stride()


@pytest.mark.parametrize(
    ("kind", "mine", "theirs"),
    [
        (torch.optim.Adam, {"fused": True, "capturable": True}, {"foreach": True, "fused": None, "capturable": False}),
        (torch.optim.AdamW, {"fused": None, "capturable": False}, {"foreach": True, "capturable": True}),
        (torch.optim.SGD, {"fused": True}, {"fused": None, "foreach": True}),
    ],
)
def test_how_updates_are_carried_out_is_the_optimizers_own(
    kind: Any, mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """A run may go on where there is a GPU, or where there is none any more."""
    layer = nn.Linear(2, 2)
    optimizer = kind(layer.parameters(), lr=0.1, **mine)
    before = {
        name: value for name, value in optimizer.param_groups[0].items() if name not in ("params", "weight_decay")
    }
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0].update(theirs, weight_decay=0.5)
    load_optimizer(optimizer, state)
    found = optimizer.param_groups[0]
    assert {name: found[name] for name in before} == before
    assert found["weight_decay"] == 0.5
