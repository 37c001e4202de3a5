"""Libraries that only some networks need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["import_extra"]

_INSTALL = {
    "open_clip": "'invariance-pair-guidance[clip]'",
    "timm": "'invariance-pair-guidance[images]'",
    "torchvision": "'invariance-pair-guidance[images]'",
    "transformers": "transformers",
}
"""What pip is to install for each."""


def import_extra(library: str, *, needed_for: str) -> Any:
    """The library; ValueError with the command that installs it where it is not there."""
    try:
        return import_module(library)
    except ImportError as error:
        raise ValueError(
            f"{needed_for} needs {library}, which cannot be imported ({error}): pip install {_INSTALL[library]}"
        ) from None
