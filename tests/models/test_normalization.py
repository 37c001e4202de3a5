"""Normalisations: names, numbers, and what files say."""

from __future__ import annotations

import pytest
import torch

from ipg.models import NORMALIZATIONS, Normalization


def test_names() -> None:
    imagenet = Normalization.parse("imagenet", channels=3)
    assert (imagenet.mean, imagenet.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert Normalization.parse("half", channels=2) == Normalization((0.5, 0.5), (0.5, 0.5))
    assert Normalization.parse("none", channels=1) == Normalization((0.0,), (1.0,))


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_text_is_read_back(name: str) -> None:
    assert Normalization.parse(str(NORMALIZATIONS[name]), channels=3) == NORMALIZATIONS[name]


def test_one_number_holds_for_all_channels() -> None:
    assert Normalization.parse("0.1/0.3", channels=2) == Normalization((0.1, 0.1), (0.3, 0.3))


def test_other_channels_take_the_averages() -> None:
    assert Normalization((0.25, 0.5, 0.75), (1.0, 2.0, 3.0)).over(1) == Normalization((0.5,), (2.0,))


def test_tensors_stand_for_the_shortest_numbers() -> None:
    values = Normalization((0.485, 0.48145467, 1 / 3), (0.229, 0.5, 2.0))
    tensors = torch.tensor(values.mean), torch.tensor(values.std)
    found = Normalization.of(*tensors)
    assert found.mean[:2] == values.mean[:2]
    assert found.std == values.std
    assert torch.equal(torch.tensor(found.mean), tensors[0])


@pytest.mark.parametrize("text", ["", "imagnet", "0.5", "0.5/0", "0.5/-1", "a/b", "0.5,0.5/0.5", "nan/1", "0.5/inf"])
def test_wrong_text(text: str) -> None:
    with pytest.raises(ValueError, match="is neither one of imagenet, half, none nor means"):
        Normalization.parse(text, channels=3)


def test_wrong_number_of_channels() -> None:
    with pytest.raises(ValueError, match="has 3 means, the images 2 channels"):
        Normalization.parse("1,2,3/1,2,3", channels=2)


@pytest.mark.parametrize(
    ("described", "found"),
    [
        ({"mean": "0.5,0.5,0.5", "std": "0.5,0.5,0.5"}, NORMALIZATIONS["half"]),
        ({"mean": (0.5, 0.5, 0.5), "std": [0.5, 0.5, 0.5]}, NORMALIZATIONS["half"]),
        ({}, None),
        ({"mean": "0.5"}, None),
        ({"mean": "0.5", "std": "0"}, None),
        ({"mean": None, "std": None}, None),
    ],
)
def test_found_in(described: dict[str, object], found: Normalization | None) -> None:
    assert Normalization.found_in(described) == found
