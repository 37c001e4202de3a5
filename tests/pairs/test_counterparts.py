import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.data.errors import DataError, ProblemsError
from ipg.pairs.counterparts import plan
from ipg.pairs.manifest import load_pairs
from ipg.pairs.plan import Plan, write


class Given:
    """A table of pairs with its counterparts, for as many training images as asked for."""

    def __init__(self, shapes, home: Path, count: int = 8) -> None:
        self.shapes, self.home = shapes, home
        self.names = [shapes.name(row) for row in shapes.rows("train")[:count]]
        for number, name in enumerate(self.names):
            pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
            path = home / "counterparts" / f"other-{number}{Path(name).suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)

    def label(self, name: str) -> str:
        table = self.shapes.table
        return table.classes[int(table.label[table.names.index(name)])]

    def rows(self) -> list[Sequence[str]]:
        return [(name, f"other-{number}.png", self.label(name)) for number, name in enumerate(self.names)]

    def plan(
        self, rows: Sequence[Sequence[str]] | None = None, header: str = "image,counterpart,label", **options
    ) -> Plan:
        path = self.home / "pairs.csv"
        lines = [header, *(",".join(row) for row in (self.rows() if rows is None else rows))]
        path.write_text("\n".join(lines), encoding="utf-8")
        return plan(self.shapes.table, self.shapes.listing, path, **options)


@pytest.fixture
def given(shapes, tmp_path: Path) -> Given:
    return Given(shapes, tmp_path / "given")


def test_every_row_is_a_pair(given: Given, tmp_path: Path) -> None:
    made = given.plan()
    assert [pair.first for pair in made.pairs] == [f"data:{name}" for name in given.names]
    assert [pair.label for pair in made.pairs] == [given.label(name) for name in given.names]
    assert {pair.builder for pair in made.pairs} == {"counterparts"}
    found = load_pairs(write(made, tmp_path / "pairs", settings={}).path, given.shapes.table)
    for number in range(8):
        pixels = np.asarray(Image.open(given.home / "counterparts" / f"other-{number}.png"))
        assert np.array_equal(found.second[number].numpy(), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("header", ["image,counterpart,y", "image,counterpart,place", "counterpart,image,label"])
def test_the_label_is_the_column_left_over(given: Given, header: str) -> None:
    rows = given.rows()
    if header.startswith("counterpart"):
        rows = [(row[1], row[0], row[2]) for row in rows]
    table = given.shapes.table
    numbered = [(*row[:2], str(table.classes.index(row[2]))) for row in rows]
    for made in (given.plan(rows, header), given.plan(numbered, header)):
        assert [pair.label for pair in made.pairs] == [given.label(name) for name in given.names]


def test_without_a_label_the_datas(given: Given) -> None:
    made = given.plan([row[:2] for row in given.rows()], "image,counterpart")
    assert [pair.label for pair in made.pairs] == [given.label(name) for name in given.names]


def test_two_columns_that_may_be_the_label(given: Given) -> None:
    with pytest.raises(DataError, match="which of y, place is the label"):
        given.plan([(*row, "0") for row in given.rows()], "image,counterpart,y,place")


def test_counterparts_in_a_zip_or_a_folder_of_any_name(given: Given, tmp_path: Path) -> None:
    expected = given.plan().pair_set().second
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        for path in (given.home / "counterparts").iterdir():
            archive.write(path, path.name)
    (given.home / "counterparts").rename(tmp_path / "else")
    for images in (tmp_path / "c.zip", tmp_path / "else"):
        assert torch.equal(given.plan(images=images).pair_set().second, expected)
    (tmp_path / "c.zip").rename(given.home / "counterparts.zip")
    assert torch.equal(given.plan().pair_set().second, expected)
    (given.home / "counterparts.zip").unlink()
    with pytest.raises(ProblemsError, match=r"there is no counterpart .*; say with --images where counterparts are"):
        given.plan()
    with pytest.raises(DataError, match=r"there are no counterparts at .*none; give their folder or zip with --images"):
        given.plan(images=tmp_path / "none")


def test_a_counterpart_named_like_an_image_is_made_of_it(given: Given) -> None:
    name, other = given.names[0], given.names[2]
    for target in (name, other):
        path = given.home / "counterparts" / target
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((given.home / "counterparts" / "other-0.png").read_bytes())
    rows = [(name, name, given.label(name)), (name, other, given.label(name)), given.rows()[1]]
    made = given.plan(rows)
    assert [pair.made_of for pair in made.pairs] == [(name,), (name, other), (given.names[1],)]


def test_counterparts_of_the_data_set_itself(given: Given) -> None:
    table = given.shapes.table
    one, two = (given.shapes.name(row) for row in given.shapes.rows("train", label=0)[:2])
    made = given.plan([(one, f"data:{two}", table.classes[0])])
    assert (made.pairs[0].second, made.pairs[0].files) == (f"data:{two}", ())
    assert torch.equal(made.pair_set().second[0], table.images[table.names.index(two)])


def test_a_number_of_them_is_drawn_equally(given: Given) -> None:
    made = given.plan(count=4)
    labels = [pair.label for pair in made.pairs]
    assert sorted(labels) == ["cross", "cross", "disc", "disc"]
    assert [pair.first for pair in given.plan(count=2).pairs] == [pair.first for pair in made.pairs][:2]
    with pytest.raises(ValueError, match="9 pairs were asked for, but only 8 can be made"):
        given.plan(count=9)


def test_rows_of_another_split_are_left_for_it(given: Given) -> None:
    held_out = given.shapes.name(given.shapes.rows("validation")[0])
    rows = [*given.rows(), (held_out, "other-0.png", given.label(held_out))]
    assert len(given.plan(rows)) == 8
    assert [pair.first for pair in given.plan(rows, split="validation").pairs] == [f"data:{held_out}"]
    with pytest.raises(DataError, match="has no pair whose image is of validation"):
        given.plan(split="validation")


def test_all_that_is_wrong_is_said_at_once(given: Given) -> None:
    (given.home / "secret.png").write_bytes((given.home / "counterparts" / "other-0.png").read_bytes())
    name, label = given.names[0], given.label(given.names[0])
    other = next(text for text in given.shapes.table.classes if text != label)
    tested = given.shapes.name(given.shapes.rows("test")[0])
    rows = [
        ("none.png", "other-0.png", label),
        (name, "none.png", label),
        (name, "../secret.png", label),
        (name, "other-0.png", other),
        (name, "other-0.png", "9"),
        (name, "", label),
        (name, f"data:{tested}", given.label(tested)),
    ]
    with pytest.raises(ProblemsError) as caught:
        given.plan(rows)
    said = caught.value.problems
    for line, part in (
        *((2, "has no image 'none.png'"), (3, "there is no counterpart 'none.png' in"), (4, "is not inside")),
        *((5, f"labels differ: {name} is {label}, the pair {other}"), (6, "the label is '9', expected")),
        *((7, "there is no counterpart ''"), (8, f"another split: {tested} is of test, the pair of train")),
    ):
        assert sum(f"line {line}: " in text and part in text for text in said) == 1, (line, said)
    assert len(said) == 7


def test_counterparts_that_cannot_be_read(given: Given) -> None:
    for number in (1, 2):
        (given.home / "counterparts" / f"other-{number}.png").write_bytes(b"no image")
    with pytest.raises(ProblemsError, match=r"other-1\.png: it is no image") as caught:
        given.plan()
    assert len(caught.value.problems) == 2


def test_a_table_without_the_columns(given: Given) -> None:
    with pytest.raises(DataError, match="has no column counterpart"):
        given.plan(header="image,counterprat,label")
    with pytest.raises(DataError, match="has no row below its first line"):
        given.plan([])


def test_rows_of_other_splits_are_told(given: Given) -> None:
    held_out, tested = (
        [given.shapes.name(row) for row in given.shapes.rows(split)[:count]]
        for split, count in (("validation", 3), ("test", 1))
    )
    rows = [*given.rows(), *((name, "other-0.png", given.label(name)) for name in (*held_out, *tested))]
    made = given.plan(rows)
    assert len(made) == 8
    assert made.notes == (
        "3 rows are of validation images: add them with --split validation",
        "1 row is of test images: no pairs are made of these, which measure what a network has learnt",
    )
    held = given.plan(rows, split="validation")
    assert (len(held), held.notes[0]) == (3, "8 rows are of train images: add them with --split train")
    assert given.plan(rows, split="validation", there=("train",)).notes == made.notes[1:]
    with pytest.raises(DataError, match="no pair whose image is of train; 1 row is of test images: no pairs are made"):
        given.plan(rows[-1:])
    assert given.plan().notes == ()
