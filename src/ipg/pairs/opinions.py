"""What somebody says of images: labels, attributes and features, from functions of pixels or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ipg.data.arrays import array_trouble, check_npz
from ipg.data.columns import read_columns
from ipg.data.errors import DataError

__all__ = ["Codes", "Known", "Opinions", "Says", "answers", "read_opinions"]

Says = Callable[[Tensor], Tensor]
"""From images, (n, C, H, W) of uint8, to numbers, (n, ...)."""
Known = Mapping[str, Tensor]
"""Numbers by the reference of an image."""
Codes = dict[str, dict[str, int]]
"""The number of every text, by column."""


@dataclass(frozen=True)
class Opinions:
    """Whom to ask about images; what is missing is not checked."""

    label: Says | Known | None = None
    """The class of an image. It should see the label alone: a network that leans on the shortcut rejects good pairs."""
    attribute: Says | Known | None = None
    """The value of the shortcut."""
    others: Says | Known | None = None
    """Further attributes, (n, A), which a pair should keep."""
    features: Says | Known | None = None
    """Features, (n, D)."""


def answers(opinion: Says | Known, references: Sequence[str], images: Tensor) -> list[Tensor | None]:
    """What is said of each of the images, (n, C, H, W); None where nothing is known."""
    if not callable(opinion):
        return [opinion.get(reference) for reference in references]
    said = torch.as_tensor(opinion(images)).cpu()
    if said.ndim == 0 or len(said) != len(images):
        raise ValueError(f"of {len(images)} images an opinion says {tuple(said.shape)}; expected a row each")
    return list(said)


def read_opinions(path: str | PathLike[str], codes: Codes | None = None) -> Opinions:
    """Predictions from a file, by the names that it has for images; `members` finds out whom they mean.

    A CSV or Parquet has a column `image`, as the manifest refers to it, and any of `label` and `attribute`; all further
    columns are other attributes. What `ipg predict` writes will do: `path` is taken for `image` and `predicted` for
    `label`, and `probability`, `p_CLASS` and `error` are no attributes. An empty label or attribute is not known. An
    npz has `image` and any of `label`, `attribute`, `others` (n, A) and `features` (n, D).

    Args:
        path: the file.
        codes: numbers that texts have already, by column, where several files belong together; new ones are added.
    """
    place = Path(path).expanduser()
    return _read_npz(place) if place.suffix == ".npz" else _read_table(place, {} if codes is None else codes)


def _read_table(place: Path, codes: Codes) -> Opinions:
    columns = read_columns(place)
    image = "image" if "image" in columns or "path" not in columns else "path"
    columns.require(image)
    if {"label", "predicted"} <= columns.values.keys():
        raise DataError(f"{place} has both label and predicted; keep the one that says what was predicted")
    cells = {
        "label" if name == "predicted" else name: texts
        for name, texts in columns.values.items()
        if name not in (image, "path", "probability", "error") and not name.startswith("p_")
    }
    if not cells:
        raise DataError(f"{place} has no column but {image} that says something; expected label, attribute or others")
    found: dict[str, dict[str, Tensor]] = {}
    others: list[list[int]] = []
    for name, texts in cells.items():
        numbers = codes.setdefault(name, {})
        column = [numbers.setdefault(text, len(numbers)) for text in texts]
        if name in ("label", "attribute"):
            rows = zip(columns[image], column, texts, strict=True)
            found[name] = {reference: torch.tensor(number) for reference, number, text in rows if text}
        else:
            others.append(column)
    if others:
        found["others"] = dict(zip(columns[image], torch.tensor(others).T, strict=True))
    return Opinions(**found)


def _read_npz(place: Path) -> Opinions:
    try:
        check_npz(place)
        with np.load(place, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # damaged files make NumPy and zipfile stumble in many ways
        raise DataError(f"{place} cannot be read as npz: {array_trouble(error)}; write it again") from error
    if "image" not in arrays or len(arrays) < 2:
        held = ", ".join(arrays) or "nothing"
        raise DataError(f"{place} holds {held}; expected image, and label, attribute, others or features")
    images = [str(name) for name in arrays.pop("image").flat]
    if unknown := [name for name in arrays if name not in ("label", "attribute", "others", "features")]:
        raise DataError(f"{place} holds {unknown[0]}; expected label, attribute, others or features")
    for name, array in arrays.items():
        least = 2 if name == "features" else 1
        if array.ndim < least or array.dtype.kind not in "biuf":
            expected = f"numbers, {'(N, D)' if least == 2 else 'a row an image'}"
            texts = "; a CSV may have texts" if array.dtype.kind in "SU" else ""
            raise DataError(f"{place} holds {array.dtype} of shape {array.shape} as {name}; expected {expected}{texts}")
        if not np.isfinite(array).all():
            raise DataError(f"{place} holds NaN or infinity as {name}; leave out images of which nothing is known")
    if wrong := [name for name, array in arrays.items() if len(array) != len(images)]:
        raise DataError(f"{place} has {len(images):,} images but {len(arrays[wrong[0]]):,} rows of {wrong[0]}")
    known = {name: dict(zip(images, torch.from_numpy(array), strict=True)) for name, array in arrays.items()}
    return Opinions(**known)
