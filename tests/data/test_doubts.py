from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ipg.data.doubts import alike, too_many_attributes, too_many_labels
from ipg.data.listing import Listing
from ipg.data.sources import FolderSource


def listing(counts: list[int], column: str | None = "kind", held_out: int = 0) -> Listing:
    """So many training images of each class, and some of the first class that are not."""
    label = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    split = torch.cat([torch.zeros_like(label), torch.ones(held_out, dtype=torch.int64)])
    label = torch.cat([label, torch.zeros(held_out, dtype=torch.int64)])
    names = tuple(str(number) for number in range(len(counts)))
    files = tuple(f"{number}.png" for number in range(len(label)))
    zeros = torch.zeros_like(label)
    return Listing(
        "x", FolderSource(Path()), files, label, zeros, split, label, names, ("all",), 8, label_column=column
    )


@pytest.mark.parametrize("counts", [[1] * 30, [3, 1, 1], [2, 2, 1], [0, 1, 1, 1]])
def test_labels_that_are_none(counts: list[int]) -> None:
    said = too_many_labels(listing(counts, held_out=50))
    assert said is not None
    assert said.startswith("nearly as many labels as images: is `kind` the right column? There are ")
    assert f"{len(counts)} labels for {sum(counts)} training images" in said
    assert "is a folder a class?" in (too_many_labels(listing(counts, None)) or "")


@pytest.mark.parametrize("counts", [[2, 2, 2], [4, 1, 1], [1, 1], [1, 0], [3, 3], [0, 0, 0]])
def test_labels_that_may_be_some(counts: list[int]) -> None:
    assert too_many_labels(listing(counts)) is None


@pytest.mark.parametrize(("values", "images", "doubted"), [(3, 5, True), (3, 6, False), (2, 2, False), (40, 79, True)])
def test_attributes_that_are_none(values: int, images: int, doubted: bool) -> None:
    plain = listing([images // 2, images - images // 2], held_out=50)
    attribute = torch.cat([torch.arange(images) % values, values + torch.arange(50)])
    said = too_many_attributes(replace(plain, attribute=attribute))
    assert (said is not None) == doubted
    if said is not None:
        assert said.startswith(f"{values} attributes for {images} training images leave hardly two in a group.")


def test_names_nearly_alike() -> None:
    assert alike(("Cat", "cat ", "dog", "big  dog", "big dog")) == ("'Cat' = 'cat '", "'big  dog' = 'big dog'")
    assert alike(("cat", "dog")) == ()
