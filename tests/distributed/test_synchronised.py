"""BatchNorm over the batches of all processes, of whatever kind it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ipg.models import build_model
from ipg.training.distributed import synchronised


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_100", "regnety_002"])
def test_networks_compute_what_they_did(name: str) -> None:
    """timm's have activations inside of their BatchNorm."""
    torch.manual_seed(0)
    model = build_model(name, channels=3, classes=2, size=32).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        before = model(images)
        after = synchronised(model)(images)
    assert torch.equal(before, after)
    kinds = {type(module) for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)}
    assert kinds
    assert all(issubclass(kind, nn.SyncBatchNorm) for kind in kinds)


class Own(nn.BatchNorm2d):
    """One that does something of its own."""


def test_others_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^the network has Own, which cannot be synchronised .*--batch-norm eval$"):
        synchronised(nn.Sequential(nn.BatchNorm2d(2), Own(2)))
