import pytest
import torch
from torch import Tensor

from ipg.pairs.inpaint import _best_shift, _correlate, fill, grow, smooth


def box(size: int, top: int, bottom: int, left: int, right: int) -> Tensor:
    hole = torch.zeros(size, size, dtype=torch.bool)
    hole[top:bottom, left:right] = True
    return hole


def stripes(size: int, period: int = 8) -> Tensor:
    wave = 0.5 + 0.4 * torch.sin(torch.arange(size) * 2 * torch.pi / period)
    return wave.expand(3, size, size).clone()


HOLE = box(64, 20, 44, 24, 40)


def test_what_is_outside_the_hole_stays() -> None:
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    filled = fill(image, HOLE)
    assert torch.equal(filled[:, ~HOLE], image[:, ~HOLE])
    assert 0 <= float(filled.min()) <= float(filled.max()) <= 1


def test_what_was_in_the_hole_has_no_influence() -> None:
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    other = torch.where(HOLE, 1 - image, image)
    torch.testing.assert_close(fill(image, HOLE), fill(other, HOLE))


def test_a_plain_image_stays_plain() -> None:
    image = torch.tensor([0.2, 0.5, 0.9]).view(3, 1, 1).expand(3, 64, 64).clone()
    broken = torch.where(HOLE, torch.zeros_like(image), image)
    torch.testing.assert_close(fill(broken, HOLE), image, atol=1e-5, rtol=0)


def test_a_texture_is_continued() -> None:
    image = stripes(64)
    broken = torch.where(HOLE, torch.zeros_like(image), image)
    torch.testing.assert_close(fill(broken, HOLE), image, atol=1e-3, rtol=0)
    smoothly = smooth(broken, ~HOLE)
    assert float((smoothly - image)[:, HOLE].abs().mean()) > 0.1  # which smoothing alone cannot


def test_a_texture_under_a_change_of_light() -> None:
    image = stripes(64) * torch.linspace(0.6, 1.0, 64).view(1, 64, 1)
    broken = torch.where(HOLE, torch.zeros_like(image), image)
    assert float((fill(broken, HOLE) - image)[:, HOLE].abs().mean()) < 0.03


def test_holes_at_the_edge_and_large_ones() -> None:
    image = stripes(64)
    for hole in (box(64, 0, 20, 0, 20), box(64, 4, 60, 4, 60), ~box(64, 0, 6, 0, 6)):
        filled = fill(torch.where(hole, torch.zeros_like(image), image), hole)
        assert filled.isfinite().all()
        assert torch.equal(filled[:, ~hole], image[:, ~hole])
    assert torch.equal(fill(image, torch.zeros(64, 64, dtype=torch.bool)), image)
    with pytest.raises(ValueError, match="the hole is the whole image"):
        fill(image, torch.ones(64, 64, dtype=torch.bool))


@pytest.mark.parametrize("size", [(7, 7), (14, 30), (33, 18)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(1))
    hole = torch.zeros(size, dtype=torch.bool)
    hole[2:5, 2:5] = True
    assert fill(image, hole).shape == image.shape


def test_correlation_against_the_naive_form() -> None:
    generator = torch.Generator().manual_seed(2)
    one, other = (torch.rand(3, 4, generator=generator, dtype=torch.float64).numpy() for _ in range(2))
    found = _correlate(one, other)
    for down in range(-2, 3):
        for right in range(-3, 4):
            expected = sum(
                one[y, x] * other[y + down, x + right]
                for y in range(3)
                for x in range(4)
                if 0 <= y + down < 3 and 0 <= x + right < 4
            )
            assert found[down % 6, right % 8] == pytest.approx(expected, abs=1e-12)


def test_the_shift_goes_to_the_like() -> None:
    """Grass in the upper half, sea in the lower: a hole in the grass is filled from the grass beside it."""
    image = torch.zeros(3, 64, 64)
    image[1, :32], image[2, 32:] = 0.8, 0.8
    hole = box(64, 8, 24, 8, 24)
    shift = _best_shift(smooth(image, ~hole), hole)
    assert shift is not None
    assert 8 + shift[0] >= 0
    assert 24 + shift[0] <= 32
    assert abs(shift[1]) >= 16
    filled = fill(torch.where(hole, torch.ones_like(image), image), hole)
    torch.testing.assert_close(filled, image, atol=1e-5, rtol=0)


def test_smooth_leads_from_one_value_to_the_other() -> None:
    image = torch.zeros(1, 16, 16)
    image[..., 12:] = 1
    known = torch.zeros(16, 16, dtype=torch.bool)
    known[:, :4], known[:, 12:] = True, True
    filled = smooth(image, known)
    assert torch.equal(filled[0, known], image[0, known])
    middle = filled[0, 8]
    assert (middle.diff() >= 0).all()
    assert 0.2 < float(middle[8]) < 0.8
    assert torch.equal(smooth(image, torch.zeros(16, 16, dtype=torch.bool)), torch.zeros_like(image))


def test_grow_and_shrink() -> None:
    mask = box(9, 4, 5, 4, 5)
    assert torch.equal(grow(mask, 2), box(9, 2, 7, 2, 7))
    assert torch.equal(grow(grow(mask, 2), -1), box(9, 3, 6, 3, 6))
    assert torch.equal(grow(mask, 0), mask)


def test_pinned_value() -> None:
    image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(7))
    filled = fill(image, box(32, 10, 20, 12, 22))
    assert filled[:, 15, 17].tolist() == pytest.approx([0.2164, 0.5391, 0.6558], abs=1e-3)
