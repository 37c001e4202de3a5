import numpy as np
import pytest
import torch
from torch import Tensor

from ipg.pairs.distances import look_alike, perceptual


def noise(seed: int, size: int = 32) -> Tensor:
    return torch.randint(0, 256, (3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def naive(first: Tensor, second: Tensor) -> float:
    """SSIM over windows of 8 x 8, every 4 pixels, one by one."""
    found = []
    for a, b in zip(first.double().numpy() / 255, second.double().numpy() / 255, strict=True):
        for y in range(0, a.shape[0] - 7, 4):
            for x in range(0, a.shape[1] - 7, 4):
                p, q = a[y : y + 8, x : x + 8], b[y : y + 8, x : x + 8]
                cov = ((p - p.mean()) * (q - q.mean())).mean()
                above = (2 * p.mean() * q.mean() + 1e-4) * (2 * cov + 9e-4)
                found.append(above / ((p.mean() ** 2 + q.mean() ** 2 + 1e-4) * (p.var() + q.var() + 9e-4)))
    return 1 - float(np.mean(found))


def test_against_the_naive_form() -> None:
    one, other = noise(0), noise(1)
    blend = (0.7 * one.float() + 0.3 * other.float()).to(torch.uint8)
    for second in (other, blend, 255 - one):
        assert perceptual(one, second) == pytest.approx(naive(one, second), abs=1e-5)


def test_the_same_and_the_other() -> None:
    assert perceptual(noise(0), noise(0)) == pytest.approx(0, abs=1e-6)
    assert perceptual(noise(0), noise(1)) > 0.9
    swapped = torch.stack([noise(0)[1], noise(0)[0], noise(0)[2]])
    assert perceptual(noise(0), swapped) > 0.5  # colours count


def test_inside_and_outside_a_mask() -> None:
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[:, :16] = True
    second = torch.where(mask, noise(0), noise(1))
    assert perceptual(noise(0), second, mask) < 0.1
    assert perceptual(noise(0), second, ~mask) > 0.8
    assert np.isnan(perceptual(noise(0), second, torch.zeros_like(mask)))


def test_images_smaller_than_a_window() -> None:
    assert perceptual(noise(0, 5), noise(0, 5)) == pytest.approx(0, abs=1e-6)


def test_look_alike() -> None:
    smooth = torch.nn.functional.interpolate(noise(0, 4)[None].float(), 48, mode="bilinear")[0].to(torch.uint8)
    assert look_alike(smooth, smooth)
    assert look_alike(smooth, (smooth.float() * 0.99).to(torch.uint8))
    assert not look_alike(smooth, smooth.flip(0))  # other colours
    assert not look_alike(smooth, smooth.flip(2))
    dark = smooth.clone()
    dark[:, 8:24, 8:24] = 0
    assert not look_alike(smooth, dark)
