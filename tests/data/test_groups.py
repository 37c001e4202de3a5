from collections.abc import Sequence

import pytest
import torch

from ipg.data.groups import Attribute, numbered, of_groups


def found(rows: Sequence[tuple[str, str]]) -> Attribute:
    """The attribute of rows of label and group."""
    labels = [label for label, _ in rows]
    label, classes = numbered(labels)
    return of_groups([group for _, group in rows], labels, label, classes)


def named(attribute: Attribute) -> list[str]:
    return [attribute.names[number] for number in attribute.number.tolist()]


@pytest.mark.parametrize(
    "form", ["{label}-{attribute}", "{attribute}_{label}", "{label}, {attribute}", "{label} {attribute}"]
)
def test_groups_named_after_label_and_attribute_are_taken_apart(form: str) -> None:
    rows = [(label, attribute) for label in ("circle", "square") for attribute in ("noise", "stripes", "a-b")]
    attribute = found([(label, form.format(label=label, attribute=attribute)) for label, attribute in rows])
    assert named(attribute) == [attribute for _, attribute in rows]
    assert attribute.names == ("a-b", "noise", "stripes")
    assert not attribute.nested
    assert "the attribute is the group without its label" in attribute.note


def test_the_case_of_the_label_does_not_matter() -> None:
    rows = [("circle", "Circle-x"), ("circle", "Circle-y"), ("square", "Square-x"), ("square", "Square-y")]
    assert named(found(rows)) == ["x", "y", "x", "y"]


@pytest.mark.parametrize(
    "rows",
    [
        [("cat", "tabby"), ("cat", "siam"), ("dog", "poodle"), ("dog", "husky")],
        [("cat", "cat-in"), ("cat", "cat-out"), ("dog", "dog-in"), ("dog", "dog-wet")],  # other attributes
        [("cat", "category"), ("cat", "cat-out"), ("dog", "dogegory"), ("dog", "dog-out")],  # no name of a label
        [("0", "7"), ("0", "9"), ("1", "8"), ("1", "12")],  # numbers of some other kind
    ],
)
def test_other_groups_of_one_label_each_are_taken_as_they_are(rows: list[tuple[str, str]]) -> None:
    attribute = found([*rows, *rows])
    assert attribute.nested
    assert attribute.names == ("group 1", "group 2")
    cells = set(zip([label for label, _ in rows], named(attribute), strict=False))
    assert len(cells) == 4  # each a group that exists
    for (_, group), name in zip(rows, named(attribute), strict=False):
        assert f"{group} is {name} of " in attribute.note


def test_labels_with_another_number_of_groups() -> None:
    attribute = found([("cat", "tabby"), ("cat", "siam"), ("cat", "manx"), ("dog", "husky")])
    assert attribute.nested
    assert named(attribute) == ["group 3", "group 2", "group 1", "group 1"]


def test_what_comes_under_two_labels_is_the_attribute() -> None:
    rows = [("cat", "cat-like"), ("cat", "wild"), ("dog", "wild"), ("dog", "dog-like")]
    assert found(rows).names == ("cat-like", "dog-like", "wild")


def test_as_many_groups_as_labels_are_a_shortcut() -> None:
    attribute = found([("cat", "sofa"), ("dog", "grass")])
    assert (attribute.names, attribute.nested, attribute.note) == (("grass", "sofa"), False, "")


def test_numbers_as_group_dro_has_them() -> None:
    attribute = found([("0", "0"), ("0", "1"), ("1", "2"), ("1", "3")])
    assert torch.equal(attribute.number, torch.tensor([0, 1, 0, 1]))
