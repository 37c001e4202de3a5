"""What the tests of the networks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def reached_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether the hub can be reached."""
    monkeypatch.setattr("ipg.models.hub._is_reached", lambda constants: True)


@pytest.fixture
def make_weights(tmp_path: Path) -> Callable[..., Path]:
    """Writes the weights of a seeded network of timm to a file, as `torch.save` does."""

    def make(name: str = "test_resnet", *, change: Callable[[dict[str, Tensor]], Any] = dict, **options: Any) -> Path:
        torch.manual_seed(7)
        path = tmp_path / f"{name}.pth"
        torch.save(change(timm.create_model(name, **options).state_dict()), path)
        return path

    return make


@pytest.fixture
def features() -> Callable[[nn.Module, Tensor], Tensor]:
    """What enters the head of a network for some images."""
    from ipg.rationale import HeadTap, find_head

    def run(model: nn.Module, images: Tensor) -> Tensor:
        tap = HeadTap(find_head(model))
        with torch.no_grad(), tap.listen():
            model(images)
        tap.remove()
        return tap.take()[0]

    return run
