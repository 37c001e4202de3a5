"""The folder that `ipg export` writes: programs, weights, and the card beside them; whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ipg.classifier import Classifier
from ipg.data.decode import decode
from ipg.data.errors import DataError
from ipg.data.load import list_files, load
from ipg.data.reading import Reading
from ipg.data.sources import Source
from ipg.data.splits import SPLITS
from ipg.export.card import card, channels_of
from ipg.export.programs import export_onnx, export_torch, require_onnx
from ipg.models import ImageModel, save_weights
from ipg.prediction import find_images

__all__ = ["FORMATS", "build", "check_place", "describe", "real_images"]

FORMATS = {"torch": ("model.pt2",), "onnx": ("model.onnx",), "both": ("model.pt2", "model.onnx")}
"""Which programs are written."""
WRITERS = {"model.pt2": export_torch, "model.onnx": export_onnx}
CHECKED_ON = 16
"""Images that a program is checked on."""


def build(folder: Path, classifier: Classifier, images: Tensor, *, name: str, format: str) -> dict[str, float]:
    """Write `classifier` to a new `folder`; returns how far each program is from the network, in logits.

    Args:
        folder: to be made.
        classifier: of a run, on the CPU.
        images: float images in [0, 1] to check on, (n, C, H, W).
        name: what to call it.
        format: of `FORMATS`.

    Raises:
        ExportError: it cannot be exported, or a program computes something else; nothing is left then.
    """
    about = json.dumps(describe(classifier, name), ensure_ascii=False, indent=2)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _naming(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        differences = {
            file: WRITERS[file](made / file, classifier.model, images, about=about) for file in FORMATS[format]
        }
        save_weights(made / "weights.safetensors", classifier.model)
        (made / "model.json").write_text(about + "\n", encoding="utf-8")
        (made / "README.md").write_text(card(classifier, name, differences, len(images)), encoding="utf-8")
        if folder.exists():
            folder.rmdir()  # it is empty, or this refuses
        shutil.move(made, folder)
    return differences


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Let errors of the file system name `folder` in place of what is made beside it for a while."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from error


def check_place(folder: Path, format: str) -> None:
    """ValueError where nothing could be written, before the work is done."""
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; expected one of {', '.join(FORMATS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not empty; name another folder with --output, or delete it")
    if "model.onnx" in FORMATS[format]:
        require_onnx()


def describe(classifier: Classifier, name: str) -> dict[str, object]:
    """What a program has to say of itself, for other programs to read."""
    model = classifier.model
    own = model.normalization if isinstance(model, ImageModel) else None
    return {
        "name": name,
        "classes": list(classifier.classes or ()),
        "input": {
            "shape": ["batch", *classifier.shape],
            "values": f"float32 in [0, 1], {channels_of(classifier)}; normalised inside",
            "square": classifier.fit,
        },
        "output": "logits",
        "normalization_inside": None if own is None else {"mean": own.mean, "std": own.std},
    }


def real_images(
    classifier: Classifier, *, data_path: str | None = None, images: Path | None = None, path_column: str | None = None
) -> Tensor:
    """A few float images in [0, 1] as the network sees them: from `images`, or test images of the run's data.

    Raises:
        DataError: they are not there; the message says how to give them.
    """
    if images is not None:
        found = find_images(images, path_column=path_column, usual=classifier.path_column)
        pixels = _decoded(found.source, found.names, classifier)
    else:
        try:
            pixels = _test_images(classifier, data_path or classifier.origin.get("data_path"))
        except ValueError as error:
            raise DataError(
                f"{error}. Programs are checked on real images: say where the data is with --data-path, or give a "
                f"folder of images with --images"
            ) from None
    return classifier.seen(pixels).float() / 255


def _test_images(classifier: Classifier, where: str | None) -> Tensor:
    name, seed = str(classifier.config.get("data")), int(classifier.config.get("seed", 0))
    listing = list_files(name, path=where, reading=Reading.kept(classifier.config))
    if listing is None:
        return load(name, path=where, size=classifier.shape[-1], seed=seed).part("test").images[:CHECKED_ON]
    rows = torch.nonzero(listing.split == SPLITS.index("test")).flatten()[:CHECKED_ON]
    return _decoded(listing.source, [listing.files[row] for row in rows.tolist()], classifier)


def _decoded(source: Source, names: Sequence[str], classifier: Classifier) -> Tensor:
    """The first of the images, (n, 3, H, W)."""
    size, fit = classifier.shape[-1], classifier.fit
    pixels = [torch.from_numpy(decode(source.read(name), size=size, fit=fit)) for name in names[:CHECKED_ON]]
    if not pixels:
        raise DataError(f"{source.place} has no test image")
    return torch.stack(pixels)
