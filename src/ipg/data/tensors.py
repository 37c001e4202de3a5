"""Images that are in memory already: tensors or arrays by split, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from ipg.data.errors import DataError
from ipg.data.splits import SPLIT_NAMES, SPLITS
from ipg.data.table import ImageTable
from ipg.words import listed

__all__ = ["as_bytes", "table_of"]

EXPECTED = 'expected {"train": (images, labels), "test": (images, labels)}'
COLUMNS = ("images", "labels", "attributes", "environments")
CHANNELS = 4
"""The most that images have; more in their place, and few in the last, are heights."""


def table_of(data: Mapping[str, Sequence[Any]], name: str = "tensors") -> ImageTable:
    """A table of images by split: `{"train": (images, labels), "test": (images, labels)}`.

    Images (N, C, H, W) are bytes, or floats from 0 to 1, which become bytes. A third tensor holds the attributes, what
    must not matter, a fourth the environments, where images come from. All are numbered from 0 and named by their
    numbers. A split may also be a torch data set of such items, which is read once; classes have the names that the one
    to train on gives them, as torchvision's do.

    Raises:
        DataError: there is no split to train on, or what a split holds does not fit together.
    """
    if unknown := [split for split in data if str(split).lower() not in SPLIT_NAMES]:
        raise DataError(f"data has no split called {listed(map(repr, unknown))}: {EXPECTED}, or validation")
    given = {SPLITS[SPLIT_NAMES[str(split).lower()]]: columns for split, columns in data.items()}
    if len(given) < len(data):
        raise DataError(f"two names stand for one split: {listed(map(repr, data))}")
    if "train" not in given:
        raise DataError(f"data has nothing to train on: {EXPECTED}")
    splits = tuple(split for split in SPLITS if split in given)
    parts = [_part(split, given[split]) for split in splits]
    if len({len(part) for part in parts}) > 1:
        what = "environments" if all(len(part) > 2 for part in parts) else "attributes"
        raise DataError(f"some splits have {what} and others have none; give them to all or to none")
    shapes = {split: tuple(part[0].shape[1:]) for split, part in zip(splits, parts, strict=True)}
    if len(set(shapes.values())) > 1:
        told = listed(f"{split} {shape}" for split, shape in shapes.items())
        raise DataError(f"images of all splits need one shape, got {told}")
    images, label, *rest = (torch.cat(column) for column in zip(*parts, strict=True))
    if len(label) and bool((label == label[0]).all()):
        raise DataError(f"every image has the label {int(label[0])}; a classifier needs two classes or more")
    attribute = rest[0] if rest else torch.zeros_like(label)
    return ImageTable(
        name=name,
        images=images,
        label=label,
        attribute=attribute,
        split=torch.repeat_interleave(torch.tensor([len(part[0]) for part in parts])),
        environment=rest[1] if len(rest) > 1 else torch.zeros_like(label),
        content=label,
        splits=splits,
        classes=_named(given["train"], label),
        attributes=_numbered(attribute) if rest else ("all",),
    )


def as_bytes(images: Any, what: str) -> Tensor:
    """Images of bytes, or of floats from 0 to 1, as bytes.

    Raises:
        DataError: they are of something else, such as floats that were normalised.
    """
    found = _tensor(images, what, "torch.stack makes one of a list of tensors; files go in as a folder or a table")
    if found.ndim != 4:
        raise DataError(f"{what} must be of shape (N, C, H, W), got {tuple(found.shape)}")
    if found.shape[-1] <= CHANNELS < found.shape[1]:
        raise DataError(
            f"{what} must be of shape (N, C, H, W), got {tuple(found.shape)} with the channels last; use "
            f"torch.as_tensor(images).permute(0, 3, 1, 2)"
        )
    if found.dtype == torch.uint8:
        return found.cpu()
    if not found.is_floating_point():
        raise DataError(f"{what} must be bytes (uint8) or floats from 0 to 1, got {found.dtype}")
    if found.numel() and not 0 <= float(found.min()) <= float(found.max()) <= 1:
        raise DataError(
            f"{what} must be floats from 0 to 1, got {float(found.min()):.3g} to {float(found.max()):.3g}; leave a "
            f"normalisation to the network"
        )
    return (255 * found.cpu().float()).round().to(torch.uint8)


def _tensor(given: Any, what: str, remedy: str) -> Tensor:
    """`given` as a tensor; DataError with the `remedy` where it is something else, such as names."""
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        each = next(iter(given), None) if isinstance(given, Sequence) and not isinstance(given, str) else None
        kind = getattr(given, "dtype", None) if each is None else type(each).__name__
        items = "" if kind is None else f" of {kind}"
        raise DataError(
            f"{what} must be a tensor or an array of numbers, got a {type(given).__name__}{items}; {remedy}"
        ) from None


def _part(split: str, given: Any) -> list[Tensor]:
    """Images, labels and, where given, attributes and environments of a split."""
    columns = _columns(split, given)
    if not 2 <= len(columns) <= 4:
        raise DataError(
            f"{split} must be (images, labels) or (images, labels, attributes), perhaps with environments after them, "
            f"got {len(columns)} of them"
        )
    part = [as_bytes(columns[0], f"{split} images")]
    for name, column in zip(COLUMNS[1:], columns[1:], strict=False):
        found = _tensor(column, f"{split} {name}", "number them from 0").cpu()
        if found.shape != part[0].shape[:1]:
            raise DataError(
                f"{split} {name} must be of shape ({len(part[0])},), one an image, got {tuple(found.shape)}"
            )
        if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            raise DataError(f"{split} {name} must be whole numbers, got {found.dtype}; use .long()")
        if len(found) and int(found.min()) < 0:
            raise DataError(f"{split} {name} must be numbered from 0, got {int(found.min())}")
        part.append(found.long())
    return part


def _columns(split: str, given: Any) -> list[Any]:
    """What a split holds, column by column; a torch data set is read once, item by item."""
    if isinstance(given, Tensor):
        return [given]
    if isinstance(given, TensorDataset):
        return list(given.tensors)
    if not isinstance(given, Dataset):
        return list(given)
    if not hasattr(given, "__len__"):
        raise DataError(
            f"{split} ({type(given).__name__}) has no length; expected (images, labels), or a data set that has one"
        )
    try:
        return list(default_collate([given[number] for number in range(len(given))]))
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"the items of {split} ({type(given).__name__}) must be (image, label), with tensors of one shape as "
            f"images: {error}"
        ) from None


def _named(given: Any, label: Tensor) -> tuple[str, ...]:
    """The classes by the names that a data set has for them, else by their numbers.

    Names of another number of classes, or before labels are changed, may be those of other labels.
    """
    while isinstance(given, Subset):
        given = given.dataset
    numbers, names = _numbered(label), getattr(given, "classes", ())
    unchanged = getattr(given, "target_transform", None) is None
    if unchanged and isinstance(names, list | tuple) and len({*map(str, names)}) == len(names) == len(numbers):
        return tuple(map(str, names))
    return numbers


def _numbered(column: Tensor) -> tuple[str, ...]:
    return tuple(str(number) for number in range(int(column.max()) + 1 if len(column) else 0))
