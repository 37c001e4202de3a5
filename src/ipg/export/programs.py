"""A network as a program of its own, and the check that it computes the same.

A program takes float images in [0, 1], (B, C, H, W) with any number B of them, normalises them itself, and returns
logits, (B, K).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipg.evaluation.groups import evaluating, logits_of

__all__ = ["TOLERANCE", "ExportError", "export_onnx", "export_torch", "largest_difference", "require_onnx"]

TOLERANCE = 1e-4
"""How far logits may be from those of the network, as a share of the largest one where that is above 1."""
ONNX = ("onnx", "onnxscript", "onnxruntime")
"""What it takes to write ONNX and to check it."""
ABOUT = "ipg.json"
"""Under which name a program carries what it is."""


class ExportError(ValueError):
    """A network that cannot be exported, or a program that computes something else."""


class Program(nn.Module):
    """The network with its logits for its only output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W) in [0, 1]."""
        return logits_of(self.model(images))


def require_onnx() -> None:
    """ExportError where ONNX cannot be written or checked."""
    if missing := [name for name in ONNX if find_spec(name) is None]:
        raise ExportError(
            f"ONNX needs {' and '.join(missing)}: pip install 'invariance-pair-guidance[export]', or give --format "
            f"torch"
        )


def export_torch(path: Path, model: nn.Module, images: Tensor, *, about: str) -> float:
    """Write `model` with torch.export; returns how far its logits of `images` (n, C, H, W) are from the network's."""
    made = io.BytesIO()  # torch's own writer of files ends the process where the disk is full
    torch.export.save(_traced(model, images), made, extra_files={ABOUT: about})
    path.write_bytes(made.getbuffer())
    return largest_difference(model, torch.export.load(path).module(), images)


def export_onnx(path: Path, model: nn.Module, images: Tensor, *, about: str) -> float:
    """Write `model` as ONNX; returns how far its logits of `images` (n, C, H, W) are from the network's."""
    require_onnx()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own parts
        try:
            program: Any = torch.onnx.export(
                _traced(model, images),
                (_example(images),),
                dynamo=True,
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
            )
        except Exception as error:  # the exporter's own, of many kinds
            raise ExportError(f"this network cannot be written as ONNX: {_line(error)}; give --format torch") from error
        program.model.metadata_props[ABOUT] = about
        program.save(str(path), external_data=False)
    session = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return largest_difference(
        model, lambda part: torch.from_numpy(session.run(None, {"images": part.numpy()})[0]), images
    )


def largest_difference(model: nn.Module, program: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """How far the logits of `program` are from those of `model`, at most, for one image, for three and for all.

    Raises:
        ExportError: too far.
    """
    largest, scale = 0.0, 1.0
    for part in (images[:1], images[:3], images):
        with evaluating(model):
            wanted, got = logits_of(model(part)), program(part)
        if got.shape != wanted.shape:
            raise ExportError(
                f"the program gives logits of shape {tuple(got.shape)}, the network {tuple(wanted.shape)}"
            )
        difference = float((got - wanted).abs().max())
        largest, scale = max(largest, difference), max(scale, float(wanted.abs().max()))
        if not difference <= TOLERANCE * scale:  # NaN is refused, too
            raise ExportError(
                f"the program is off by {difference:.2g} in logits of up to {scale:.2g}, more than {TOLERANCE:g} of "
                f"them, so it was not kept"
            )
    return largest


def _traced(model: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    program = Program(model).eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                program, (_example(images),), dynamic_shapes={"images": {0: torch.export.Dim("batch")}}
            )
    except Exception as error:  # torch's own, of many kinds
        raise ExportError(f"torch.export cannot follow this network: {_line(error)}") from error


def _example(images: Tensor) -> Tensor:
    """Two images: torch.export takes a batch of one for a constant."""
    return images[:2] if len(images) > 1 else torch.cat([images, images])


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
