"""What a trained network says of image files, a batch at a time, as rows of a CSV."""

from __future__ import annotations

import csv
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from ipg.classifier import Classifier
from ipg.data.columns import FORMULA, TABLE_SUFFIXES, as_cell, read_columns
from ipg.data.decode import decode
from ipg.data.errors import DataError
from ipg.data.folder import is_table
from ipg.data.parallel import Progress, in_order
from ipg.data.reading import require
from ipg.data.sources import IMAGE_SUFFIXES, FolderSource, Source, is_image, open_source, passed_over
from ipg.files import replacing

__all__ = ["Counts", "Found", "Prediction", "find_images", "predictions", "said_of", "write_predictions"]


@dataclass(frozen=True)
class Found:
    """Image files to look at."""

    source: Source
    names: Sequence[str]
    note: str | None = None
    """What was passed over, in a sentence."""


@dataclass(frozen=True)
class Prediction:
    """What is said of one image: the probability of every class, or why it cannot be read."""

    name: str
    probabilities: Sequence[float] = ()
    error: str = ""
    predicted: str = ""
    """The likeliest class, the first of several; nothing where classes have no names."""


def said_of(name: str, probabilities: Sequence[float], classes: Sequence[str] | None) -> Prediction:
    """What is said of an image that can be read."""
    predicted = classes[list(probabilities).index(max(probabilities))] if classes else ""
    return Prediction(name, probabilities, predicted=predicted)


@dataclass
class Counts:
    """How many images got each class, and which could not be read."""

    classes: dict[str, int]
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Name and reason."""


def find_images(place: Path, base: Path | None = None, *, path_column: str | None = None, usual: str = "path") -> Found:
    """The images of a folder or zip, the one at `place`, or those that a column of a table names.

    Args:
        place: folder, zip, image or table.
        base: for a table, the folder or zip that its paths are relative to; its own folder where not given.
        path_column: for a table, the column that names the images.
        usual: what that column is called where it is not given, and in tables that have none of that name, `path`.

    Raises:
        DataError: there is none.
    """
    if is_table(place):
        columns = read_columns(place).spelt((path_column or usual, "path"))
        column = path_column or (usual if usual in columns else "path")
        require(columns, {"path": column})
        home = base or place.parent
        if not home.exists():
            raise DataError(f"there is no folder {home} for the images of {place}")
        return Found(open_source(home), columns[column])
    if base is not None:
        raise DataError(f"--data-path is for a table, and {place} is none; leave it out")
    if path_column is not None:
        raise DataError(f"{place} is no table and has no columns: leave --path-column out")
    if not place.exists():
        raise DataError(f"there is nothing at {place}; expected a folder or zip of images, an image, or a table")
    if place.is_file() and is_image(place.name):
        return Found(FolderSource(place.parent), [place.name])
    if place.is_file() and place.suffix.lower() != ".zip" and not zipfile.is_zipfile(place):
        kinds = f"an image ({', '.join(IMAGE_SUFFIXES)}), a zip of them, or a table ({', '.join(TABLE_SUFFIXES)})"
        raise DataError(f"{place} is of no format that is read; expected {kinds}")
    source: Source = FolderSource(place) if place.is_dir() else open_source(place)
    files = source.names()
    names, passed = [name for name in files if is_image(name)], passed_over(files)
    if not names:
        remedy = passed or "images are files that end in .jpg, .png, .webp and the like"
        raise DataError(f"{place} has no image in it; {remedy}")
    return Found(source, names, passed)


def predictions(
    classifier: Classifier, found: Found, *, batch: int, progress: Progress | None = None
) -> Iterator[Prediction]:
    """What `classifier` says of each image, in order; no more than a few batches are in memory."""

    def read(name: str) -> Tensor | str:
        """The image, or why it cannot be read."""
        try:
            if (there := found.source.find(name)) is None:
                return "there is no such file"
            return torch.from_numpy(decode(found.source.read(there), size=classifier.shape[-1], fit=classifier.fit))
        except DataError as error:
            return str(error)

    images = zip(found.names, in_order(read, found.names), strict=True)
    done = 0
    while part := list(islice(images, batch)):
        good = [image for _, image in part if isinstance(image, Tensor)]
        said = iter(classifier.probabilities(torch.stack(good)).tolist() if good else ())
        for name, image in part:
            if isinstance(image, str):
                yield Prediction(name, error=image)
            else:
                yield said_of(name, next(said), classifier.classes)
        done += len(part)
        if progress is not None:
            progress(done, len(found.names))


def write_predictions(path: Path | None, classifier: Classifier, said: Iterator[Prediction]) -> Counts:
    """Write a line an image, no cell of it a formula to a spreadsheet; to standard output where no `path` is given.

    A file is there whole or not at all; what is no plain file, such as a pipe, is written to as it is.
    """
    if path is None:
        return _write_rows(sys.stdout, classifier, said)
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as file:
            return _write_rows(file, classifier, said)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        return _write_rows(file, classifier, said)


def _write_rows(file: TextIO, classifier: Classifier, said: Iterator[Prediction]) -> Counts:
    classes = classifier.classes or ()
    counts = Counts(dict.fromkeys(classes, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # of metadata that is damaged, which does not matter
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "predicted", "probability", *(f"p_{name}" for name in classes), "error"])
        for one in said:
            if one.error:
                writer.writerow([_path(one.name), "", "", *("" for _ in classes), _text(one.error)])
                counts.errors.append((one.name, one.error))
                continue
            if one.predicted:
                counts.classes[one.predicted] += 1
            shares = [f"{share:.6f}" for share in one.probabilities] if classes else []
            most = f"{max(one.probabilities):.6f}"
            writer.writerow([_path(one.name), _text(one.predicted), most, *shares, ""])
    return counts


def _path(name: str) -> str:
    """A name that leads to the same file and is no formula; bytes that are no text become question marks."""
    plain = name.encode("utf-8", "replace").decode("utf-8")
    return f"./{plain}" if plain.startswith(FORMULA) else plain


def _text(text: str) -> str:
    """A text that a spreadsheet shows as it is; bytes that are no text become question marks."""
    return as_cell(text.encode("utf-8", "replace").decode("utf-8"))
