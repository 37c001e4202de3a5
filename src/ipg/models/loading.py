"""Networks that are trained already, with their heads, from wherever they are: to measure, or to go on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from ipg.models.libraries import from_hugging_face, from_timm, from_torchvision
from ipg.models.own_code import from_python
from ipg.models.saved import from_path
from ipg.rationale import HeadNotFoundError, find_head

__all__ = ["check_there", "load_model"]

LOADERS: dict[str, Callable[[str, str | None], nn.Module]] = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "hf": from_hugging_face,
    "python": from_python,
}
"""What stands before the colon, and who loads it from what stands behind, and from its normalisation."""


def load_model(
    spec: str | Path,
    *,
    classes: int | None = None,
    normalization: str | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """A trained network for images in [0, 1], in eval mode on `device`.

    Args:
        spec: `timm:NAME@WEIGHTS` or `torchvision:NAME@WEIGHTS` (a file, or weights of the library's; its own where not
            given), `hf:ID_OR_FOLDER` (Hugging Face), `python:MODULE_OR_FILE:FUNCTION` (code of yours, which is run),
            the folder of a run, or a file of weights that names its architecture, as `save_weights` writes it.
        classes: how many it has to tell apart; not checked where not given.
        normalization: what the weights were trained with, where they do not say.
        device: where it goes.

    Raises:
        ValueError: it cannot be loaded, or has another number of classes.
    """
    check_there(spec)
    kind, _, rest = str(spec).partition(":")
    known = kind in LOADERS and rest
    model = LOADERS[kind](rest, normalization) if known else from_path(Path(spec), normalization)
    if classes is not None:
        _check_classes(model, classes, str(spec))
    return model.to(device).eval()


def check_there(spec: str | Path) -> None:
    """ValueError where `spec` names no library and nothing is at that path."""
    kind, _, rest = str(spec).partition(":")
    if not (kind in LOADERS and rest) and not Path(spec).exists():
        expected = ", ".join(f"{kind}:…" for kind in LOADERS)
        raise ValueError(f"there is no model {str(spec)!r}; expected the folder of a run, a file, or {expected}")


def _check_classes(model: nn.Module, classes: int, spec: str) -> None:
    try:
        found = find_head(model).out_features
    except HeadNotFoundError:
        return  # it can be measured all the same
    if found != classes and (found, classes) != (1, 2):  # a single logit tells two classes apart
        raise ValueError(
            f"{spec} tells {found} classes apart, the data has {classes}: name a model trained for these classes, or "
            f"train a new head on its weights"
        )
