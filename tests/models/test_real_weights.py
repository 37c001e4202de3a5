"""ImageNet weights, which are too large to carry: $IPG_DATA, or shared/data beside the project."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ipg.models import NORMALIZATIONS, ImageModel, build_model, load_model
from ipg.rationale import find_head, pairwise_distances, scaled_features

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")

NAME = "mobilenetv2_100"


@pytest.fixture
def file(repo_root: Path) -> str:
    folder = Path(os.environ.get("IPG_DATA") or repo_root.parent / "shared" / "data")
    path = folder / "weights" / f"{NAME}.safetensors"
    if not path.is_file():
        pytest.skip(f"needs weights/{NAME}.safetensors (set IPG_DATA)")
    return str(path)


def test_mobilenet_v2(file: str, features: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = build_model(NAME, channels=3, classes=2, weights=file, size=224).eval()
    assert isinstance(model, ImageModel)
    assert model.normalization == NORMALIZATIONS["half"]
    steps = torch.linspace(0, 1, 224)
    images = torch.stack(
        [(f * steps[:, None] + g * steps).mul(6).sin().abs() for f, g in ((0, 1), (1, 0), (3, 5), (9, 9))]
    )
    found = features(model, images[:, None].expand(-1, 3, -1, -1))
    assert found.shape == (4, 1280)
    assert bool(found.isfinite().all())
    head = find_head(model)
    assert (head.in_features, head.out_features) == (1280, 2)
    distances = pairwise_distances(scaled_features(found, head.weight.detach()))
    assert 0.3 < float(distances.sum()) / 12 < 3


def test_it_has_no_classifier(file: str) -> None:
    with pytest.raises(ValueError, match=r"mobilenetv2_100.safetensors has no classifier \(classifier.weight\)"):
        load_model(f"timm:{NAME}@{file}")


def test_it_is_of_no_other_network(file: str) -> None:
    with pytest.raises(ValueError, match=r"does not fit mobilenetv2_050: sizes differ in conv_stem.weight"):
        build_model("mobilenetv2_050", channels=3, classes=2, weights=file)
