import torch

from ipg.data.splits import SHARES, draw_missing


def drawn(group: torch.Tensor, split: torch.Tensor | None = None, alike=None, seed: int = 0) -> torch.Tensor:
    split = torch.zeros_like(group) if split is None else split
    return draw_missing(split, group, range(len(group)) if alike is None else alike, seed=seed)


def test_every_group_is_in_every_split_by_its_share() -> None:
    group = torch.tensor([0] * 200 + [1] * 40 + [2] * 3)
    split = drawn(group)
    for name, size in ((0, 200), (1, 40)):
        for number, share in SHARES.items():
            assert int(((split == number) & (group == name)).sum()) == round(share * size)
    assert sorted(split[group == 2].tolist()) == [0, 1, 2]


def test_groups_of_one_or_two_stay_in_training() -> None:
    assert drawn(torch.tensor([0, 1, 1])).tolist() == [0, 0, 0]


def test_seeds() -> None:
    group = torch.arange(100) % 2
    assert torch.equal(drawn(group, seed=3), drawn(group, seed=3))
    assert not torch.equal(drawn(group, seed=3), drawn(group, seed=4))


def test_only_what_is_missing_is_drawn_and_from_training_alone() -> None:
    group = torch.zeros(100, dtype=torch.long)
    given = torch.tensor([0] * 60 + [2] * 40)
    split = drawn(group, given)
    assert torch.equal(split[60:], given[60:])
    assert int((split == 1).sum()) == round(0.15 * 60)
    complete = torch.arange(100) % 3
    assert torch.equal(drawn(group, complete), complete)


def test_copies_of_an_image_stay_together() -> None:
    group = torch.zeros(300, dtype=torch.long)
    alike = [row // 3 for row in range(300)]
    split = drawn(group, alike=alike).view(100, 3)
    assert torch.equal(split, split[:, :1].expand(100, 3))
    assert set(split.flatten().tolist()) == {0, 1, 2}
