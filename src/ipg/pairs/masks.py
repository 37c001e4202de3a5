"""Masks of objects: an image file for each image of a data set, of the same name and size, white on the object."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

import torch
from PIL import ExifTags, Image
from torch import Tensor

from ipg.data.cache import cached_images
from ipg.data.decode import decode
from ipg.data.errors import DataError, ProblemsError
from ipg.data.listing import Listing
from ipg.data.parallel import in_order
from ipg.data.sources import FolderSource, Source, ZipSource
from ipg.pairs.inpaint import grow
from ipg.pairs.rows import Pair

__all__ = ["Keep", "Masks", "agreed", "margin"]

Keep = Literal["object", "scene"]
"""What the label is of, and both members of a pair therefore show."""
SIDEWAYS = (5, 6, 7, 8)
"""The orientations of EXIF that swap width and height."""
MARGIN = 3
"""Pixels of 224 by which the edge of an object may be off: shadows, soft edges."""


class Masks:
    """The masks of a data set, made square as its images are.

    Args:
        place: the folder or zip with the masks; they are called as the images, with any suffix.
        listing: the files of the data set.
        size: the side of its images; the data set's own where not given.
    """

    def __init__(self, place: str | PathLike[str], listing: Listing, *, size: int | None = None) -> None:
        home = Path(place).expanduser()
        if not home.exists():
            raise DataError(f"there are no masks at {home}; give the folder or zip that holds them with --masks")
        self.source: Source = FolderSource(home) if home.is_dir() else ZipSource([home])
        self.listing = listing
        self.size = listing.size if size is None else size

    def __call__(self, row: int) -> Tensor:
        """The mask of a row, (size, size), floats in [0, 1]; DataError where it is missing or does not fit."""
        name = self.listing.files[row]
        found = self.source.find(name)
        if found is None:
            raise DataError(
                f"{self.source.place} has no mask for {name}: expected {self.source.place / name}, with any suffix"
            )
        try:
            data = self.source.read(found)
            mask = torch.from_numpy(decode(data, size=self.size, fit=self.listing.fit)[0]).float() / 255
            (*of_mask, _), (*of_image, turned) = _size(data), _size(self.listing.source.read(name))
        except DataError as error:
            raise DataError(f"the mask {found} in {self.source.place} cannot be read: {error}") from error
        if of_mask != of_image:
            exif, remedy = "", "bring it to the size of the image"
            if turned:
                exif = " when turned as its EXIF says"
                remedy = "turn the mask as well" if of_mask == of_image[::-1] else remedy
            raise DataError(
                f"the mask {found} has {of_mask[0]} x {of_mask[1]} pixels, its image {of_image[0]} x {of_image[1]}"
                f"{exif}; {remedy}"
            )
        if not bool((mask > 0.5).any()):
            raise DataError(f"the mask {found} in {self.source.place} is black: it shows no object")
        return mask

    def check(self, rows: Iterable[int]) -> None:
        """ProblemsError with all masks of these rows that are missing or do not fit."""

        def problem(row: int) -> str:
            try:
                self(row)
            except DataError as error:
                return str(error)
            return ""

        if problems := [text for text in in_order(problem, dict.fromkeys(rows)) if text]:
            raise ProblemsError(problems)

    def tensor(self, rows: Sequence[int]) -> Tensor:
        """The masks of some rows, (n, 1, size, size) of uint8, decoded once into the cache.

        A row without a mask has an empty one. Where images change, masks are compared with them again.

        Raises:
            DataError: none of them has a mask.
            ProblemsError: masks that do not fit, all named.
        """
        found = {row: name for row in rows if (name := self.source.find(self.listing.files[row])) is not None}
        if not found:
            raise DataError(
                f"{self.source.place} has no mask for any of {len(rows):,} images of {self.listing.name}; masks are "
                f"called as the images, with any suffix"
            )
        known = cached_images(
            self.source,
            tuple(found.values()),
            size=self.size,
            fit=self.listing.fit,
            what=f"masks of {self.listing.name}",
            channels=1,
            check=lambda: self.check(found),
            against=self.listing.source.stamps([self.listing.files[row] for row in found]),
        )
        if len(found) == len(rows):
            return known
        masks = known.new_zeros(len(rows), *known.shape[1:])
        masks[[number for number, row in enumerate(rows) if row in found]] = known
        return masks


def margin(size: int) -> int:
    """`MARGIN` at another size."""
    return max(round(MARGIN * size / 224), 1)


def agreed(masks: Masks, keep: Keep | str) -> Callable[[Pair], Tensor | None]:
    """Where the members of pairs should agree, (H, W) of bool, by the masks of the images that they are made of."""
    if keep not in get_args(Keep):
        raise ValueError(f"keep={keep!r} is unknown; there are {', '.join(get_args(Keep))}")
    rows = {name: row for row, name in enumerate(masks.listing.files)}

    def region(pair: Pair) -> Tensor | None:
        objects = [masks(rows[name]) > 0.5 for name in pair.originals if name in rows]
        if not objects:
            return None
        if keep == "object":
            return grow(objects[0], -margin(masks.size))
        return ~grow(torch.stack(objects).any(dim=0), margin(masks.size))

    return region


def _size(data: bytes) -> tuple[int, int, bool]:
    """Width and height of an image as `decode` turns it, and whether that swaps them."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            turned = width != height and _orientation(image) in SIDEWAYS
    except Exception as error:  # of Pillow's parsers
        raise DataError(str(error)) from error
    return (height, width, True) if turned else (width, height, False)


def _orientation(image: Image.Image) -> object:
    with suppress(Exception):  # damaged EXIF says nothing about the rotation
        return image.getexif().get(ExifTags.Base.Orientation)
    return None
