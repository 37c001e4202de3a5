from dataclasses import replace

import pytest
import torch

from ipg.data.table import ImageTable


def make_table() -> ImageTable:
    return ImageTable(
        name="toy",
        images=torch.arange(6 * 2 * 2 * 2, dtype=torch.uint8).view(6, 2, 2, 2),
        label=torch.tensor([0, 1, 2, 0, 1, 2]),
        attribute=torch.tensor([0, 0, 0, 1, 1, 1]),
        split=torch.tensor([0, 1, 0, 1, 0, 0]),
        environment=torch.zeros(6, dtype=torch.long),
        content=torch.tensor([7, 8, 9, 7, 8, 9]),
        splits=("train", "test", "empty"),
        classes=("a", "b", "c"),
        attributes=("x", "y"),
    )


def test_groups_are_label_then_attribute() -> None:
    table = make_table()
    assert table.group.tolist() == [0, 2, 4, 1, 3, 5]
    assert table.group_names == ("a, x", "a, y", "b, x", "b, y", "c, x", "c, y")
    assert table.num_classes == 3


def test_tables_are_compared_as_objects(make_table) -> None:
    table = make_table()
    assert table == table
    assert table != make_table()


def test_part_holds_the_rows_of_a_split_in_order() -> None:
    table = make_table()
    part = table.part("train")
    assert table.indices("train").tolist() == [0, 2, 4, 5]
    assert part.content.tolist() == [7, 9, 8, 9]
    assert torch.equal(part.images, table.images[[0, 2, 4, 5]])
    assert len(table.part("empty")) == 0


def test_unknown_split_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="toy has no split 'valid'; it has train, test, empty"):
        make_table().indices("valid")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("images", torch.zeros(6, 2, 2, 2), "images must be uint8"),
        ("images", torch.zeros(6, 2, 2, dtype=torch.uint8), r"images must be uint8 of shape \(N, C, H, W\)"),
        ("label", torch.zeros(6), "label must be int64"),
        ("label", torch.zeros(5, dtype=torch.long), r"label must be int64 of shape \(6,\)"),
        ("label", torch.tensor([0, 1, 2, 0, 1, 3]), r"label must lie in 0…2 \(a, b, c\), got 0…3"),
        ("attribute", torch.tensor([0, 0, 0, 1, 1, -1]), r"attribute must lie in 0…1 \(x, y\), got -1…1"),
        ("split", torch.full((6,), 3), "split must lie in 0…2"),
        ("environment", torch.zeros(6, dtype=torch.int32), "environment must be int64"),
        ("content", torch.zeros(6, 1, dtype=torch.long), "content must be int64 of shape"),
    ],
)
def test_what_is_wrong_with_a_column_is_said(column: str, values: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"toy: {message}"):
        replace(make_table(), **{column: values})  # type: ignore[arg-type]


def test_names_go_with_their_rows() -> None:
    table = replace(make_table(), names=tuple("uvwxyz"))
    assert table.take(torch.tensor([4, 0])).names == ("y", "u")
    assert table.take(torch.tensor([True, False] * 3)).names == ("u", "w", "y")
    assert table.part("train").names == ("u", "w", "y", "z")
    assert table.to("cpu").names == tuple("uvwxyz")
    assert make_table().take(torch.tensor([1])).names is None
    with pytest.raises(ValueError, match="toy: 6 images have 2 names; expected one each"):
        replace(make_table(), names=("a", "b"))


def test_a_split_in_one_piece_is_not_copied() -> None:
    table = replace(make_table(), split=torch.tensor([1, 0, 0, 0, 1, 1]), names=tuple("uvwxyz"))
    part = table.part("train")
    assert part.images.data_ptr() == table.images[1:].data_ptr()
    assert (part.content.tolist(), part.names) == ([8, 9, 7], ("v", "w", "x"))
    apart = table.part("test")
    assert apart.images.untyped_storage().data_ptr() != table.images.untyped_storage().data_ptr()
    assert apart.content.tolist() == [7, 8, 9]
