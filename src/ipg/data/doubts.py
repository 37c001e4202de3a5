"""Whether labels and attributes are such: columns of something else have nearly as many values as there are images."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ipg.data.listing import Listing

__all__ = ["alike", "too_many_attributes", "too_many_labels"]


def too_many_labels(listing: Listing) -> str | None:
    """Why nothing can be learnt from these labels, with the question to ask; None where something can.

    Two labels are never too many: they are a task, however few images there are.
    """
    train = listing.label[listing.split == 0]
    counts = torch.bincount(train, minlength=len(listing.classes))
    few = 2 * len(listing.classes) > len(train) or int(counts.max()) < 2
    if len(listing.classes) == 2 or not len(train) or not few:
        return None
    asked = "is a folder a class?" if listing.label_column is None else f"is `{listing.label_column}` the right column?"
    return (
        f"nearly as many labels as images: {asked} There are {len(listing.classes):,} labels for {len(train):,} "
        f"training images"
    )


def too_many_attributes(listing: Listing) -> str | None:
    """Why these attributes make no groups, with the remedy; None where they may."""
    train = listing.attribute[listing.split == 0]
    found = len(train.unique())  # type: ignore[no-untyped-call]
    if found <= 2 or 2 * found <= len(train):
        return None
    return (
        f"{found:,} attributes for {len(train):,} training images leave hardly two in a group. A number or name of "
        f"each image is no attribute: take the column that says what must not matter, or none"
    )


def alike(names: Sequence[str]) -> tuple[str, ...]:
    """Names that differ in case or in spaces alone, those that are alike beside one another."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(" ".join(name.split()).casefold(), []).append(name)
    return tuple(" = ".join(map(repr, same)) for same in found.values() if len(same) > 1)
