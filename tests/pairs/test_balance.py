import pytest
import torch

from ipg.pairs.balance import deal

QUEUES = {"a": torch.arange(0, 5), "b": torch.arange(10, 12), "c": torch.arange(20, 29)}


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [0]),
        (3, [0, 10, 20]),
        (5, [0, 10, 20, 1, 11]),
        (9, [0, 10, 20, 1, 11, 21, 2, 22, 3]),  # b has run out
        (16, [0, 10, 20, 1, 11, 21, 2, 22, 3, 23, 4, 24, 25, 26, 27, 28]),
    ],
)
def test_rows_are_dealt_in_turn(count: int, expected: list[int]) -> None:
    assert deal(QUEUES, count).tolist() == expected


def test_rows_of_pairs() -> None:
    queues = {"a": torch.tensor([[1, 2], [3, 4]]), "b": torch.tensor([[5, 6]])}
    assert deal(queues, 3).tolist() == [[1, 2], [5, 6], [3, 4]]


def test_asking_for_too_many_names_the_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"17 pairs were asked for, but only 16 can be made \(a: 5; b: 2; c: 9\); ask for 16 or fewer"
    ):
        deal(QUEUES, 17)
    with pytest.raises(ValueError, match=r"only 0 can be made \(the split has no images\)$"):
        deal({}, 1)


@pytest.mark.parametrize("count", [0, -3])
def test_asking_for_none(count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count} is out of range"):
        deal(QUEUES, count)
