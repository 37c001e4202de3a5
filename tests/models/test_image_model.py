"""The network that normalises its images itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.models import ImageModel, Normalization, freeze
from ipg.rationale import find_head

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


class Net(nn.Module):
    """A convolution, BatchNorm, dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
        self.fc = nn.Linear(4, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.body(images).mean(dim=(2, 3)))
        return logits


@pytest.fixture
def model() -> ImageModel:
    return ImageModel(Net(), Normalization((0.5, 0.25), (0.5, 2.0)), name="net", origin="random weights")


def test_images_are_normalised_inside(model: ImageModel) -> None:
    images = torch.rand(3, 2, 8, 8)
    by_hand = torch.stack([images[:, 0] * 2 - 1, images[:, 1] / 2 - 0.125], dim=1)
    model.eval()
    torch.testing.assert_close(model(images), model.backbone(by_hand))


def test_a_checkpoint_is_complete(model: ImageModel) -> None:
    assert {"mean", "std", "backbone.fc.weight"} <= set(model.state_dict())
    other = ImageModel(Net(), Normalization((0.0, 0.0), (1.0, 1.0)), name="net", origin="")
    other.load_state_dict(model.state_dict())
    assert other.normalization == model.normalization


def test_the_head_is_found(model: ImageModel) -> None:
    assert find_head(model) is model.backbone.fc


def test_it_compiles_whole_and_with_channels_last(model: ImageModel) -> None:
    images = torch.rand(3, 2, 8, 8)
    model.eval()
    expected = model(images)
    fast = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(images), expected)
    assert find_head(fast) is model.backbone.fc
    last = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected)


def test_a_frozen_network_learns_in_its_head_alone(model: ImageModel) -> None:
    freeze(model)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "backbone.fc.weight",
        "backbone.fc.bias",
    ]
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.rand(6, 2, 8, 8)
    assert torch.equal(model(images), model(images))  # no dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    F.cross_entropy(model(images), torch.arange(6) % 2).backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"backbone.fc.weight", "backbone.fc.bias"}


def test_modes_of_a_frozen_network(model: ImageModel) -> None:
    freeze(model)
    model.train()
    assert model.training
    assert model.backbone.fc.training
    assert not any(module.training for module in model.backbone.body.modules())
    model.eval()
    assert not any(module.training for module in model.modules())


def test_modes_of_a_whole_network(model: ImageModel) -> None:
    assert all(module.training for module in model.train().modules())


def test_any_network_can_be_frozen() -> None:
    net = Net()
    freeze(net)
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]
