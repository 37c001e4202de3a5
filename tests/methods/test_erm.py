"""Plain training against a step written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.batches import Batches
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class
from ipg.models import build_model


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_is_a_step_of_the_optimizer_bit_for_bit(kind: Any, make_table: Callable[..., ImageTable]) -> None:
    batches = Batches(make_table().part("train"), 32, seed=0)
    weight = torch.tensor([0.5, 2.0])

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = build_model("small_cnn", channels=2, classes=2)
        return model, kind(model.parameters(), lr=0.01)

    model, optimizer = fresh()
    method = method_class("erm")(Setup(model, optimizer, nn.CrossEntropyLoss(weight), RunConfig(method="erm")))
    plain, its_optimizer = fresh()
    for rows in batches.rows(0):
        values = method.step(batches.take(rows))
        x, y = batches.table.images[rows].float() / 255, batches.table.label[rows]
        its_optimizer.zero_grad()
        loss = F.cross_entropy(plain(x), y, weight)
        loss.backward()
        its_optimizer.step()
        assert set(values) == {"task_loss"}
        assert torch.equal(values["task_loss"], loss.detach())
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_weighted_loss_is_divided_by_the_weights(toy: Any) -> None:
    """Σ w_y CE / Σ w_y, in numbers: as many times an image as its weight says."""
    model = toy.network()
    batch = toy.batch(0, n=3)._replace(label=torch.tensor([0, 1, 1]))
    weight = torch.tensor([3.0, 1.0, 5.0], dtype=torch.float64)
    method = toy.method("erm", model, criterion=nn.CrossEntropyLoss(weight))
    each = -model(batch.image).log_softmax(dim=1)[torch.arange(3), batch.label].detach()
    loss = method.step(batch)["task_loss"]
    assert loss.item() == pytest.approx(((3 * each[0] + each[1] + each[2]) / 5).item(), abs=1e-12)


def test_autocast_reaches_the_network_and_not_the_loss(toy: Any) -> None:
    model = toy.network(dtype=torch.float32)
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))

    def criterion(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        seen.append(logits.dtype)
        return F.cross_entropy(logits, label)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for autocast in (torch.bfloat16, None):
        setup = Setup(model, optimizer, criterion, RunConfig(method="erm"), autocast=autocast)
        method_class("erm")(setup).step(toy.batch(0, dtype=torch.float32))
    assert seen == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
