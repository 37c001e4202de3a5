"""A compiled model is evaluated in batches of one size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.evaluation.groups import EVALUATION_BATCH_CPU, predict

SIZE = EVALUATION_BATCH_CPU


class Brightest(nn.Module):
    """Predicts 1 for bright images, and keeps the sizes of the batches it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        bright = images.mean(dim=(1, 2, 3))
        return torch.stack([1 - bright, bright], dim=1)


class Compiled(nn.Module):
    """As torch.compile would wrap it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self._orig_mod(images)
        return logits


@pytest.mark.parametrize("count", [1, SIZE, SIZE + 1, 2 * SIZE - 1])
def test_the_last_batch_is_filled_up(count: int) -> None:
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    plain, inner = Brightest(), Brightest()
    expected = predict(plain, images)
    assert torch.equal(predict(Compiled(inner), images), expected)
    assert expected.shape == (count,)
    assert set(inner.sizes) == {SIZE}
    assert sum(plain.sizes) == count


def test_a_model_that_takes_batches_of_any_size_is_given_no_more_images_than_there_are() -> None:
    images, inner = torch.zeros(SIZE + 1, 1, 2, 2, dtype=torch.uint8), Brightest()
    model = Compiled(inner)
    model.any_batch = True  # as one of ours for a CPU says
    assert len(predict(model, images)) == sum(inner.sizes) == SIZE + 1
