"""Images in parts, and parts that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.evaluation import parts
from ipg.evaluation.features import features
from ipg.evaluation.groups import logits
from ipg.evaluation.parts import in_parts


class Small:
    """Doubles images, at most so many at once; remembers how many it was given."""

    def __init__(self, most: int) -> None:
        self.most, self.given = most, list[int]()

    def __call__(self, images: Tensor) -> Tensor:
        self.given.append(len(images))
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 2 * images


@pytest.fixture(autouse=True)
def freed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """How often memory was given back, which takes a while."""
    made: list[bool] = []
    monkeypatch.setattr(parts, "free_memory", lambda: made.append(True))
    return made


@pytest.mark.parametrize(
    ("most", "given"),
    [(8, [8, 2]), (7, [8, 4, 4, 2]), (3, [8, 4, 2, 2, 2, 2, 2]), (1, [8, 4, 2, *[1] * 10])],
)
def test_parts_are_halved_until_they_fit(most: int, given: list[int], freed: list[bool]) -> None:
    answer = Small(most)
    assert torch.equal(in_parts(answer, torch.arange(10), 8), 2 * torch.arange(10))
    assert answer.given == given
    assert len(freed) == sum(size > most for size in given)


def test_no_part_is_larger_than_all_images() -> None:
    answer = Small(3)
    assert torch.equal(in_parts(answer, torch.arange(6), 128), 2 * torch.arange(6))
    assert answer.given == [6, 3, 3]


def test_where_not_even_one_image_fits_that_is_said() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(Small(0), torch.arange(3), 2)


def test_of_no_image_there_is_one_part() -> None:
    answer = Small(4)
    assert len(in_parts(answer, torch.arange(0), 2)) == 0
    assert answer.given == [0]


@pytest.mark.parametrize(("most", "given"), [(8, [8, 8]), (4, [8, 4, 4, 4])])
def test_the_last_part_is_filled_up_where_so_asked(most: int, given: list[int]) -> None:
    answer = Small(most)
    assert torch.equal(in_parts(answer, torch.arange(10), 8, fill=True), 2 * torch.arange(10))
    assert answer.given == given
    assert len(in_parts(answer, torch.arange(0), 8, fill=True)) == 0


class Short(nn.Sequential):
    """A linear network on a device with little memory."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2))

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        answer: Tensor = super().forward(images)
        return answer


def test_networks_are_evaluated_on_a_device_that_is_too_small_for_a_batch() -> None:
    torch.manual_seed(0)
    model = Short()
    images = torch.randint(0, 256, (20, 3, 2, 2), dtype=torch.uint8)
    whole = torch.cat([model(part.float() / 255) for part in images.split(1)])
    torch.testing.assert_close(logits(model, images), whole)
    inside = torch.cat([nn.Sequential(*list(model)[:3])(part.float() / 255) for part in images.split(1)])
    torch.testing.assert_close(features(model, images), inside)
