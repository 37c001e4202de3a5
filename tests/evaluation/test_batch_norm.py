"""The gap between what BatchNorm sees of pairs and of task images."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.evaluation import batch_norm
from ipg.evaluation.batch_norm import batch_norm_gap

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def test_the_gap_by_hand() -> None:
    """Channel means 0 and 51/255 against 102/255 and 51/255, standard deviations 51/255 and 0.1: √(2² / 2)."""
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = torch.zeros(4, 2, 2, 2, dtype=torch.uint8)
    task[::2, 0], task[1::2, 0] = 51, 153
    task[::2, 1], task[1::2, 1] = 0, 102
    pairs = torch.zeros(3, 2, 2, 2, dtype=torch.uint8)
    pairs[:, 1] = 51
    assert batch_norm_gap(model, (pairs[:1], pairs[1:]), task) == pytest.approx(math.sqrt(2), rel=1e-6)
    assert batch_norm_gap(model, (task,), task) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[0].training
    assert not model[0]._forward_pre_hooks


def test_no_gap_without_batch_norm_or_images() -> None:
    images = torch.zeros(3, 2, 2, 2, dtype=torch.uint8)
    assert batch_norm_gap(nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), (images, images), images) is None
    assert batch_norm_gap(nn.Sequential(nn.BatchNorm2d(2)), (images[:0], images[:0]), images) is None


@pytest.mark.parametrize(("first", "second"), [(1, 1), (128, 128), (129, 128), (300, 300), (700, 0), (513, 1000)])
def test_the_images_are_those_of_all_members_taken_as_one(first: int, second: int) -> None:
    members = torch.arange(first + second)
    found = batch_norm._some(members[:first], members[first:])
    assert torch.equal(found, members[:: math.ceil(len(members) / 256)])


def test_a_few_images_are_moved_to_where_the_network_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are streamed lie elsewhere; `meta` stands for a GPU."""
    seen: list[Tensor] = []
    kinds: list[str] = []

    def moments(model: nn.Module, layers: Any, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        seen.append(images)
        return [(torch.full((2,), float(len(seen))), torch.ones(2))]

    def autocast(kind: str, **_: Any) -> Any:
        kinds.append(kind)
        return nullcontext()

    monkeypatch.setattr(batch_norm, "_moments", moments)
    monkeypatch.setattr(torch, "autocast", autocast)
    images = torch.zeros(2000, 2, 2, 2, dtype=torch.uint8)
    assert batch_norm_gap(nn.Sequential(nn.BatchNorm2d(2)).to("meta"), (images, images), images[:300]) == 1
    assert [(given.device.type, len(given)) for given in seen] == [("meta", 250), ("meta", 150)]
    assert kinds == ["meta"]
