"""Views of images, drawn on the device."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as TF

from ipg.data.augment import RATIO, Augmentation, look

CPU = torch.device("cpu")


def pictures(count: int = 4, size: int = 12) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_the_whole_image_is_the_image() -> None:
    images = pictures()
    views = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(4, -1)
    torch.testing.assert_close(look(images, views), images, atol=1e-5, rtol=0)


def test_a_mirrored_view_is_mirrored() -> None:
    images = pictures()
    views = torch.tensor([[0.0, 0.0, -1.0, 1.0]]).expand(4, -1)
    torch.testing.assert_close(look(images, views), images.flip(-1), atol=1e-5, rtol=0)


def test_a_crop_is_torchvisions() -> None:
    """The upper right quarter, enlarged: bilinear, as torchvision resizes it."""
    images = pictures()
    views = torch.tensor([[0.5, -0.5, 0.5, 0.5]]).expand(4, -1)
    expected = TF.resized_crop(images, 0, 6, 6, 6, [12, 12], antialias=False)
    inner = (..., slice(1, -1), slice(1, -1))  # torchvision repeats the crop's edge, a view looks beyond it
    torch.testing.assert_close(look(images, views)[inner], expected[inner], atol=1e-5, rtol=0)


def test_views_lie_inside_and_keep_their_share() -> None:
    torch.manual_seed(0)
    x, y, across, height = Augmentation(crop=0.5, flip=True).draw(20_000, CPU).unbind(dim=1)
    width = across.abs()
    assert (x.abs() + width <= 1 + 1e-6).all()
    assert (y.abs() + height <= 1 + 1e-6).all()
    area = width * height
    assert 0.4999 < area.min() < 0.51
    assert area.max() > 0.99
    assert 1.3 < (width / height).max() <= RATIO * 1.0001
    assert (across < 0).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_without_a_crop_only_the_side_changes() -> None:
    torch.manual_seed(0)
    views = Augmentation(flip=True).draw(100, CPU)
    assert (views[:, :2] == 0).all()
    assert {tuple(view) for view in views[:, 2:].tolist()} == {(1.0, 1.0), (-1.0, 1.0)}


def test_views_are_a_function_of_the_seed() -> None:
    kind = Augmentation(crop=0.7, flip=True)
    torch.manual_seed(1)
    one = kind.draw(5, CPU)
    torch.manual_seed(1)
    assert torch.equal(kind.draw(5, CPU), one)
    assert not torch.equal(kind.draw(5, CPU), one)


@pytest.mark.parametrize(("kind", "any_"), [(Augmentation(), False), (Augmentation(flip=True), True)])
def test_whether_there_is_anything_to_draw(kind: Augmentation, any_: bool) -> None:
    assert bool(kind) == any_
    assert Augmentation(crop=0.9)


@pytest.mark.parametrize("crop", [0.0, -1.0, 1.5, float("nan")])
def test_shares_that_cannot_be(crop: float) -> None:
    with pytest.raises(
        ValueError, match=r"crop=.* is out of range: expected a share of the image, above 0 and up to 1"
    ):
        Augmentation(crop=crop)
