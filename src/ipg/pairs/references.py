"""What the references of a manifest lead to: rows of the data set, or files beside the manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ipg.data.decode import Fit, decode
from ipg.data.errors import DataError
from ipg.data.sources import FolderSource
from ipg.data.table import ImageTable
from ipg.pairs.rows import DATA, Pair

__all__ = ["References", "name_of", "to_rgb"]

SIZE = 224
"""The side of images where no data set gives one."""


class References:
    """Images by reference.

    Args:
        folder: what files are relative to; none may lie outside.
        table: the data set; without one `data:` leads nowhere and images are RGB.
        size: the side of images without a data set; with one it is the data set's.
        fit: how files become square; as those of the data set did where not given, without one as one's own images do.
    """

    def __init__(
        self, folder: Path, table: ImageTable | None = None, *, size: int | None = None, fit: Fit | None = None
    ) -> None:
        self.table, self.fit = table, _fit_of_pairs(fit or (table.fit if table is not None else None) or "crop")
        self.source = FolderSource(folder)
        self.shape = (3, size or SIZE, size or SIZE) if table is None else tuple(table.images.shape[1:])
        self._rows = {} if table is None else {name_of(table, row): row for row in range(len(table))}
        self._files: dict[str, list[str]] | None = None  # by the last part of their names, once that is asked for

    def row(self, name: str) -> int:
        """The row of the data set's image `name`; DataError where it has none."""
        table = self._data(name)
        if name not in self._rows:
            made = "; were the pairs made with another --seed or --size?" if table.names is None else self._near(name)
            raise DataError(f"{table.name} has no image {name!r}{made}")
        return self._rows[name]

    def _near(self, name: str) -> str:
        """A question after the one image whose file is called so in some folder; nothing where there are none or more.

        Names are often given from another folder than that of the data.
        """
        if self._files is None:
            self._files = {}
            for known in self._rows:
                self._files.setdefault(known.rpartition("/")[2], []).append(known)
        near = self._files.get(name.replace("\\", "/").rpartition("/")[2], [])
        return f"; is {near[0]!r} meant?" if len(near) == 1 else ""

    def has(self, name: str) -> bool:
        """Whether the data set has an image `name`."""
        return name in self._rows

    def image(self, reference: str) -> Tensor:
        """The image, (C, H, W) of uint8; DataError where it is missing, unreadable or outside."""
        if reference.startswith(DATA):
            name = reference.removeprefix(DATA)
            return self._data(name).images[self.row(name)]
        pixels = self._decoded(reference)
        channels = self.shape[0]
        if channels == 2 and pixels[2].any():
            raise DataError(f"{reference}: the data set's images have two channels, this one has three")
        return torch.from_numpy(pixels[:channels])

    def mask(self, reference: str) -> Tensor:
        """A mask, (H, W) of bool: where it is white."""
        return torch.from_numpy(self._decoded(reference)[0] > 127)

    def sources(self, pair: Pair) -> list[int]:
        """The rows that the two members come from; -1 for a file that is not known to come from any."""
        original = self.row((pair.made_of or pair.originals)[0]) if pair.originals else -1
        return [
            self.row(member.removeprefix(DATA)) if member.startswith(DATA) else original
            for member in (pair.first, pair.second)
        ]

    def _data(self, name: str) -> ImageTable:
        if self.table is None:
            raise DataError(f"{name!r} is an image of a data set; say which with --data")
        return self.table

    def _decoded(self, reference: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        try:
            found = self.source.find(reference)
            if found is None:
                raise DataError("there is no such file")
            return decode(self.source.read(found), size=self.shape[-1], fit=self.fit)
        except DataError as error:
            raise DataError(f"{reference}: {error}") from error


def _fit_of_pairs(fit: Fit) -> Fit:
    """How files of pairs become square beside images that became so by `fit`; those of `ipg pairs build` are already.

    What is cut off in a `zoom` has been cut off from these: they are no larger than what was kept.
    """
    return "squeeze" if fit == "zoom" else fit


def name_of(table: ImageTable, row: int) -> str:
    """What a manifest calls an image of the data set: its file, or where it comes from none its number and digest."""
    if table.names is not None:
        return table.names[row]
    return f"{row}-{hashlib.blake2b(table.images[row].numpy().tobytes(), digest_size=4).hexdigest()}"


def to_rgb(image: Tensor) -> Tensor:
    """An image of one, two or three channels, (C, H, W), as RGB; two are red and green."""
    if image.shape[0] == 1:
        return image.expand(3, -1, -1)
    if image.shape[0] == 2:
        return torch.cat([image, torch.zeros_like(image[:1])])
    return image
