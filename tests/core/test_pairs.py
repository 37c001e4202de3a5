"""A batch of pairs as what carries tensors: it moves, it is pinned, and it is itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ipg.guidance import Pairs


def made(n: int = 3) -> Pairs:
    images = torch.arange(2.0 * n).view(n, 2)
    return Pairs(images, -images, torch.arange(n), total=2 * n)


def parts(pairs: Pairs) -> list[Tensor]:
    return [pairs.first, pairs.second, pairs.label]


@pytest.mark.parametrize("non_blocking", [False, True])
def test_all_of_a_batch_moves_as_it_is_told(monkeypatch: pytest.MonkeyPatch, *, non_blocking: bool) -> None:
    asked = []
    move = Tensor.to

    def note(tensor: Tensor, device: object, *, non_blocking: bool) -> Tensor:
        asked.append((device, non_blocking))
        return move(tensor, device, non_blocking=non_blocking)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(Tensor, "to", note)
    moved = made().to("meta", non_blocking=non_blocking)
    assert asked == [("meta", non_blocking)] * 3
    assert {part.device.type for part in parts(moved)} == {"meta"}
    assert moved.total == 6


def test_all_of_a_batch_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 100)  # without a GPU there is nothing to pin for
    pairs, pinned = made(), made().pin_memory()
    assert all(torch.equal(part, own + 100) for part, own in zip(parts(pinned), parts(pairs), strict=True))
    assert pinned.total == 6


class Numbers(Dataset[tuple[Tensor, Tensor, int]]):
    """Pairs that a worker reads one by one."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return torch.full((2,), float(index)), torch.full((2,), -float(index)), index % 2


def collate(rows: list[tuple[Tensor, Tensor, int]]) -> Pairs:
    return Pairs(*default_collate(rows))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_makes_batches_of_pairs(workers: int) -> None:
    batches = list(DataLoader(Numbers(), batch_size=2, collate_fn=collate, num_workers=workers))
    assert torch.cat([batch.first for batch in batches])[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert torch.cat([batch.label for batch in batches]).tolist() == [0, 1, 0, 1, 0]
    assert repr(batches[-1]) == "Pairs(1 pair of (2,), float32 on cpu)"


def test_a_batch_is_equal_to_itself_alone() -> None:
    """Not to one with equal numbers, for which a device would have to be asked."""
    pairs = made()
    assert pairs in [made(), pairs]
    assert pairs != made()
    assert len({pairs, made(), pairs}) == 2
