"""The one in-memory form of a data set: labelled images with an attribute, an environment and a split."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ipg.data.decode import Fit
from ipg.words import did_you_mean

__all__ = ["ImageTable"]


@dataclass(frozen=True, repr=False, eq=False)
class ImageTable:
    """N images as a table: a row an image, a column a tensor.

    A *group* is a combination of label and attribute, numbered `label * (number of attributes) + attribute`.
    """

    name: str
    """What the data set is called in results, e.g. `colored_mnist`."""
    images: Tensor  # (N, C, H, W), uint8
    label: Tensor  # (N,), int64
    attribute: Tensor  # (N,), int64; what must not matter
    split: Tensor  # (N,), int64; position in `splits`
    environment: Tensor  # (N,), int64; 0 where there is one alone
    content: Tensor  # (N,), int64; what is depicted (the digit, the kind of garment); the label where unknown
    splits: tuple[str, ...]
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    names: tuple[str, ...] | None = None
    """The file of every row, relative to the data's folder; None for images that come from none."""
    drawn: int | None = None
    """The `split_seed` that drew the split; None where the data brings one."""
    fit: Fit | None = None
    """How its files became square, as those of pairs then do; None for images that come from none."""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (N, C, H, W), "
                f"got {self.images.dtype} {tuple(self.images.shape)}"
            )
        limits = {"label": self.classes, "attribute": self.attributes, "split": self.splits}
        for column in ("label", "attribute", "split", "environment", "content"):
            values: Tensor = getattr(self, column)
            if values.dtype != torch.int64 or values.shape != (len(self.images),):
                raise ValueError(
                    f"{self.name}: {column} must be int64 of shape ({len(self.images)},), "
                    f"got {values.dtype} {tuple(values.shape)}"
                )
            names = limits.get(column)
            if names is not None and len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(names):
                raise ValueError(
                    f"{self.name}: {column} must lie in 0…{len(names) - 1} ({', '.join(names)}), "
                    f"got {int(values.min())}…{int(values.max())}"
                )
        if self.names is not None and len(self.names) != len(self.images):
            raise ValueError(f"{self.name}: {len(self.images)} images have {len(self.names)} names; expected one each")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        parts = ", ".join(f"{int((self.split == n).sum()):,} {name}" for n, name in enumerate(self.splits))
        named = {"classes": self.classes, **({"attributes": self.attributes} if len(self.attributes) > 1 else {})}
        told = ", ".join(
            f"{what} {', '.join(names)}" if len(names) <= 6 else f"{len(names):,} {what}"
            for what, names in named.items()
        )
        return f"ImageTable({self.name}: {parts} images of {tuple(self.images.shape[1:])}; {told})"

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.classes)

    @property
    def group(self) -> Tensor:
        """The group of every row, (N,)."""
        return self.label * len(self.attributes) + self.attribute

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of all groups, also of those without an image."""
        return tuple(f"{label}, {attribute}" for label in self.classes for attribute in self.attributes)

    def indices(self, split: str) -> Tensor:
        """Rows of `split`, in order."""
        if split not in self.splits:
            hint = did_you_mean(split, self.splits)
            there = f"it has {', '.join(self.splits)}"
            raise ValueError(f"{self.name} has no split {split!r}; {there}{f': {hint}' if hint else ''}")
        return torch.nonzero(self.split == self.splits.index(split)).flatten()

    def part(self, split: str) -> ImageTable:
        """The rows of `split` as a table of their own; where they follow one another no image is copied."""
        rows = self.indices(split)
        if len(rows) == 0 or int(rows[-1]) - int(rows[0]) + 1 != len(rows):
            return self.take(rows)
        piece = slice(int(rows[0]), int(rows[-1]) + 1)
        names = self.names[piece] if self.names is not None else None
        return replace(self, names=names, **{name: getattr(self, name)[piece] for name in self._columns()})

    def take(self, rows: Tensor) -> ImageTable:
        """The given rows, by number or as a mask, as a table of their own."""
        if rows.dtype == torch.bool:
            rows = torch.nonzero(rows).flatten()
        names = tuple(self.names[row] for row in rows.tolist()) if self.names is not None else None
        return replace(self, names=names, **{name: self._at(name, rows) for name in self._columns()})

    def to(self, device: torch.device | str, *, images: bool = True) -> ImageTable:
        """The same table on `device`; without `images`, all of it but them."""
        moved = [name for name in self._columns() if images or name != "images"]
        return replace(self, **{name: getattr(self, name).to(device) for name in moved})

    def _at(self, name: str, rows: Tensor) -> Any:
        """The given rows of a column, wherever it lies."""
        column: Tensor = getattr(self, name)
        return column[rows.to(column.device)]

    def _columns(self) -> list[str]:
        return [field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor)]
