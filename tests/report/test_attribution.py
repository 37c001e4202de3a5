from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.report.attribution import last_map, look


class Corner(nn.Module):
    """Answers by the upper left quarter of the first channel alone."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.head = nn.Linear(1, outputs)
        self.norm = nn.BatchNorm1d(1)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-1, 1, outputs)[:, None] if outputs > 1 else torch.ones(1, 1))

    def forward(self, images: Tensor) -> Tensor:
        side = images.shape[-1] // 2
        return self.head(self.norm(images[:, 0, :side, :side].mean(dim=(1, 2))[:, None]))


class Bright(nn.Module):
    """Says how much bright stuff there is, by a feature map of half the size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 1, 2, stride=2, bias=False), nn.ReLU(inplace=True))
        self.head = nn.Linear(1, 2)
        with torch.no_grad():
            self.body[0].weight.fill_(1)
            self.head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
            self.head.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean(dim=(2, 3)))


class Patches(nn.Module):
    """A map whose channels come last, which is none of images."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images.permute(0, 2, 3, 1)).mean(dim=(1, 2))


def test_the_last_feature_map_is_what_is_looked_at() -> None:
    images = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    images[0, :, 2:6, 2:6] = 255
    images[1, :, 10:14, 8:16] = 255
    model = Bright()
    maps = look(model, images)
    assert float(maps[0, 2:6, 2:6].min()) > 0.4
    assert float(maps[0, 8:].max()) == 0
    assert float(maps[1, 10:14, 10:].min()) > 0.4
    assert float(maps[1, :8].max()) == 0


def test_which_map_is_the_last() -> None:
    model = Bright()
    assert last_map(model, torch.zeros(1, 1, 16, 16)) is model.body
    assert last_map(model, torch.zeros(1, 1, 16, 30)) is model.body
    assert last_map(Corner().eval(), torch.zeros(1, 3, 16, 16)) is None
    assert last_map(Patches(), torch.zeros(1, 3, 16, 16)) is None
    assert look(Patches(), noise()).shape == (3, 24, 24)


def noise(n: int = 3, channels: int = 3, side: int = 24) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, side, side), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_maps_are_hot_where_the_model_looks_and_cold_elsewhere(channels: int, outputs: int) -> None:
    maps = look(Corner(outputs), noise(channels=channels))
    assert maps.shape == (3, 24, 24)
    assert 0 <= float(maps.min()) <= float(maps.max()) == 1
    assert float(maps[:, :9, :9].mean()) > 0.15
    assert float(maps[:, 16:, 16:].max()) < 0.01


def test_the_model_is_left_as_it_was() -> None:
    model = Corner().train()
    model.head.requires_grad_(False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    look(model, noise())
    assert model.training
    assert model.norm.training
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, False, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_model_that_looks_nowhere_has_a_cold_map() -> None:
    model = Corner()
    nn.init.zeros_(model.head.weight)
    assert float(look(model, noise()).max()) == 0


def test_an_image_is_shown_the_same_alone_and_among_many() -> None:
    images = noise(40, channels=1)
    torch.testing.assert_close(look(Bright(), images)[35:], look(Bright(), images[35:]))
