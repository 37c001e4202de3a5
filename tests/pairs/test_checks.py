from dataclasses import replace
from pathlib import Path

import pytest

from ipg.data.errors import DataError
from ipg.pairs.checks import class_number, problems_in, problems_of
from ipg.pairs.references import References
from ipg.pairs.rows import Manifest, Pair


@pytest.mark.parametrize(
    ("label", "classes", "number"),
    [
        ("cat", ("cat", "dog"), 0),
        ("1", ("cat", "dog"), 1),
        ("3", ("3", "7"), 0),
        ("2", ("1", "2"), 1),
        ("0", ("3rd", "2nd"), 0),
    ],
)
def test_classes_by_name_then_by_number(label: str, classes: tuple[str, ...], number: int) -> None:
    assert class_number(label, classes) == number


@pytest.mark.parametrize("label", ["2", "-1", "Cat", "", "1.0", "²"])
def test_no_such_class(label: str) -> None:
    with pytest.raises(DataError, match="expected cat, dog, or 0 to 1"):
        class_number(label, ("cat", "dog"))


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        *(("0", ("1", "2")), ("1", ("3", "7")), ("1", ("0.0", "1.0")), ("0", ("cat", "2"))),
        *(("0", ("-1", "cat")), ("0", ("1.", "cat"))),
    ],
)
def test_classes_that_are_named_by_numbers_are_given_by_name_alone(label: str, classes: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=f"expected {classes[0]} or {classes[1]}: the classes are named by numbers, so"):
        class_number(label, classes)


def found(shapes, **changes) -> list[str]:
    """What is wrong with a good pair of two training crosses after some changes."""
    row = shapes.rows("train", label=shapes.table.classes.index("cross"))[0]
    pair = {"first": f"data:{shapes.name(row)}", "second": "a.png", "label": "cross", "split": "train"}
    return problems_of(Pair(**(pair | changes)), References(Path(), shapes.table))


def test_good_pairs(shapes) -> None:
    assert found(shapes) == []
    assert found(shapes, label="0", label_first="cross", label_second="0") == []
    assert found(shapes, first="a.png") == []  # nothing is known of it


def test_members_that_differ_in_label(shapes) -> None:
    disc = shapes.name(shapes.rows("train", label=shapes.table.classes.index("disc"))[0])
    assert found(shapes, second=f"data:{disc}") == [f"labels differ: {disc} is disc, the pair cross"]
    assert found(shapes, label_second="disc") == ["labels differ: the second member is disc, the pair cross"]
    assert found(shapes, first="a.png", made_of=(disc,)) == [f"labels differ: {disc} is disc, the pair cross"]
    assert found(shapes, first=f"data:{disc}", label="disc", label_second="cross") == [
        "labels differ: the second member is cross, the pair disc"
    ]
    cross = found(shapes, made_of=(shapes.name(shapes.rows("train", label=0)[1]), disc))
    assert cross == []  # a donor has whatever label it has


@pytest.mark.parametrize("split", ["validation", "test"])
def test_images_of_another_split(shapes, split: str) -> None:
    other = shapes.name(shapes.rows(split, label=shapes.table.classes.index("cross"))[0])
    expected = [f"another split: {other} is of {split}, the pair of train"]
    assert found(shapes, second=f"data:{other}") == expected
    first = shapes.name(shapes.rows("train", label=shapes.table.classes.index("cross"))[0])
    assert found(shapes, made_of=(first, other)) == expected
    assert found(shapes, first=f"data:{other}", split=split) == []
    assert found(shapes, split=split) == [f"another split: {first} is of train, the pair of {split}"]


def test_unknown_labels_and_images(shapes) -> None:
    assert found(shapes, label="2") == ["unknown label: the label is '2', expected cross, disc, or 0 to 1"]
    assert found(shapes, label_first="star")[0].startswith("unknown label: the label is 'star'")
    assert found(shapes, made_of=("none.png",)) == ["image missing or unreadable: labels has no image 'none.png'"]
    assert found(shapes, first="data:none.png") == []  # whoever reads it will say so


def test_without_a_data_set_only_what_is_written_down() -> None:
    pair = Pair("a.png", "b.png", "x", "train", label_first="cat", label_second="dog")
    assert problems_of(pair, References(Path())) == ["labels differ: cat, dog"]
    for alike in (replace(pair, label_second="cat"), replace(pair, label_second="")):
        assert problems_of(alike, References(Path())) == []
    manifest = Manifest(Path("pairs.csv"), (pair, pair), lines=(2, 5))
    assert problems_in(manifest, [1], References(Path())) == ["pairs.csv line 5: labels differ: cat, dog"]
