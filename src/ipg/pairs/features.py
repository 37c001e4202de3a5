"""What images are compared by: features or attributes from files, or plain thumbnails where there are none."""

from __future__ import annotations

import zipfile
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ipg.data.arrays import check_npz
from ipg.data.columns import read_columns
from ipg.data.errors import DataError
from ipg.data.table import ImageTable
from ipg.files import parse_json
from ipg.pairs.references import name_of

__all__ = ["joined", "read_attributes", "read_features", "thumbnails"]

SIDE = 16
"""Of a thumbnail."""
_VALUES = {"0": 0.0, "1": 1.0, "-1": 0.0}


def read_features(path: str | PathLike[str], table: ImageTable) -> NDArray[Any]:
    """Features of every image of `table`, or of one split, from `.npy`, `.npz` or `.safetensors`.

    A `.npy` holds a row an image, in the table's order. The others hold an array `features`, and may name the image of
    each row: in an array `names`, or as a JSON list under `names` in the metadata of safetensors.

    Returns:
        (N, D); where the file names its images, in the order of the table.
    """
    place = Path(path).expanduser()
    try:
        features, names = _read(place)
    except OSError as error:
        raise DataError(f"{place} cannot be read as features: {error.strerror or error}") from error
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{place} cannot be read as features: {error}") from error
    if features.ndim < 2 or features.dtype.kind not in "fiu":
        raise DataError(f"{place} holds {features.dtype} of shape {features.shape}; expected numbers, (N, D)")
    if names is None:
        return features
    if len(names) != len(features):
        raise DataError(f"{place} holds {len(features):,} rows of features but {len(names):,} names")
    place_of = {name: row for row, name in enumerate(names)}
    wanted = [name_of(table, row) for row in range(len(table))]
    if missing := [name for name in wanted if name not in place_of]:
        raise DataError(f"{place} has no features of {len(missing):,} images, the first of them {missing[0]}")
    return features[[place_of[name] for name in wanted]]


def read_attributes(path: str | PathLike[str], table: ImageTable) -> tuple[Tensor, tuple[str, ...]]:
    """Further attributes of every image, from a CSV or Parquet: its columns of 0 and 1 (or -1 and 1).

    The column with the images' names is found by itself. Columns that say the same as the label or the shortcut, or
    tell one value of them from all others, are left out, since these are what pairs agree and differ in.

    Returns:
        (N, A) of 0 and 1, and the names of the columns.
    """
    columns = read_columns(Path(path).expanduser())
    wanted = [name_of(table, row) for row in range(len(table))]
    sample = set(wanted)
    key = next((name for name, cells in columns.values.items() if sample & set(cells[:1000])), None)
    if key is None:
        raise DataError(f"{columns.what}: no column names the images of {table.name}, such as {wanted[0]}")
    line = {name: row for row, name in enumerate(columns[key])}
    if missing := [name for name in wanted if name not in line]:
        raise DataError(f"{columns.what} lacks {len(missing):,} images of {table.name}, the first of them {missing[0]}")
    rows = torch.tensor([line[name] for name in wanted])
    found: dict[str, Tensor] = {}
    for name, cells in columns.values.items():
        if set(cells) <= _VALUES.keys():
            values = torch.tensor([_VALUES[cell] for cell in cells])[rows]
            if not any(_tells_one_value(values == 1, column) for column in (table.label, table.attribute)):
                found[name] = values
    if not found:
        raise DataError(f"{columns.what} has no column of 0 and 1 beside the label and the shortcut")
    return torch.stack(list(found.values()), dim=1), tuple(found)


def _tells_one_value(chosen: Tensor, column: Tensor) -> bool:
    """Whether the images that are `chosen`, or all others, are those of one value of `column`."""
    for side in (chosen, ~chosen):
        of_side = column[side]
        if len(of_side) and bool((of_side == of_side[0]).all()) and torch.equal(column == of_side[0], side):
            return True
    return False


def thumbnails(images: Tensor) -> Tensor:
    """Small versions of uint8 images (N, C, H, W), their colours and their edges, as features (N, D)."""
    parts = []
    for part in torch.split(images, 256):
        pixels = part.float() / 255
        grey = pixels.mean(dim=1, keepdim=True)
        edges = (grey[..., 1:, :-1] - grey[..., :-1, :-1]).abs() + (grey[..., :-1, 1:] - grey[..., :-1, :-1]).abs()
        both = [F.adaptive_avg_pool2d(pixels, SIDE), 4 * F.adaptive_avg_pool2d(edges, SIDE)]  # of like spread
        parts.append(torch.cat([part.flatten(1) for part in both], dim=1))
    return torch.cat(parts)


def joined(features: Tensor | NDArray[Any], others: Tensor, *, weight: float = 1.0) -> Tensor:
    """Features and further attributes as one: both of mean squared distance 1, times `weight` for the attributes.

    Args:
        features: (n, D).
        others: (n, A).
        weight: how much the attributes count.
    """
    return torch.cat(
        [_scaled(torch.as_tensor(features).flatten(1).float()), weight**0.5 * _scaled(others.float())], dim=1
    )


def _scaled(points: Tensor) -> Tensor:
    """Points whose mean squared distance from each other is 1."""
    spread = 2 * points.var(dim=0, correction=0).sum()
    return points / spread.sqrt().clamp(min=1e-12)


def _read(place: Path) -> tuple[NDArray[Any], list[str] | None]:
    if place.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(place, framework="pt") as file:
                names = (file.metadata() or {}).get("names")
                return file.get_tensor("features").float().numpy(), _listed(names) if names else None
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    check_npz(place)
    loaded = np.load(place, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded, None
    with loaded as archive:
        return archive["features"], [str(name) for name in archive["names"].flat] if "names" in archive else None


def _listed(names: str) -> list[str]:
    """The names in a JSON list."""
    found = parse_json(names)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError("its names are no list of texts")
    return found
