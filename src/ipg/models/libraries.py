"""Trained networks of timm, torchvision and Hugging Face."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from torch import Tensor

from ipg.models.backbones import HUBS, PRETRAINED, chosen_normalization, trained_timm_model
from ipg.models.extras import import_extra
from ipg.models.fitting import classes_in, load_weights
from ipg.models.hub import fetched, is_unanswered
from ipg.models.image_model import ImageModel
from ipg.models.normalization import NORMALIZATIONS, Normalization
from ipg.models.weights import read_weights

__all__ = ["from_hugging_face", "from_timm", "from_torchvision"]


def from_timm(text: str, normalization: str | None) -> ImageModel:
    """`NAME@WEIGHTS`, or `hf-hub:org/name`."""
    name, _, weights = (text, "", "") if text.startswith(HUBS) else text.partition("@")
    return trained_timm_model(name, weights or PRETRAINED, normalization=normalization)


def from_torchvision(text: str, normalization: str | None) -> ImageModel:
    """`NAME@WEIGHTS`, where weights are a file or what torchvision calls them, such as IMAGENET1K_V1."""
    name, _, weights = text.partition("@")
    models = import_extra("torchvision", needed_for=f"torchvision:{name}").models
    if name not in (names := models.list_models(module=models)):
        near = difflib.get_close_matches(name, names, n=4)
        raise ValueError(f"torchvision has no classifier {name!r}" + (f"; near are {', '.join(near)}" if near else ""))
    released = models.get_model_weights(name).__members__
    known: Normalization | None
    if not weights or weights in released:
        entry = released[weights or "DEFAULT"]
        model, known, origin = (
            _fetched(models, name, entry),
            Normalization.found_in(vars(entry.transforms())),
            str(entry),
        )
    else:
        read = read_weights(weights)
        classes = classes_in(_made(models, name), read)
        model, known, origin = _made(models, name, num_classes=classes), read.normalization, f"from {read.source}"
        load_weights(model, read, name=f"torchvision:{name}", new_head=False)
    chosen = chosen_normalization(normalization, known, channels=3, source=origin.removeprefix("from "))
    return ImageModel(model, chosen, name=f"torchvision:{name}", origin=f"weights {origin}")


def _fetched(models: Any, name: str, entry: Any) -> Any:
    try:
        return models.get_model(name, weights=entry)
    except OSError as error:
        raise ValueError(
            f"the weights of torchvision:{name} cannot be fetched: {error}. Without a network, name a file after @."
        ) from None


def _made(models: Any, name: str, **options: Any) -> Any:
    """A random network, whose weights a file will replace; two of them warn unless told to draw none."""
    quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **quick, **options)


class HuggingFaceModel(ImageModel):
    """An image classifier of Hugging Face, which returns an object with the logits in it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """What it calls its outputs, in their order."""
        named: dict[int, str] = getattr(self.backbone.config, "id2label", None) or {}
        return tuple(str(named[number]) for number in sorted(named))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W) in [0, 1]."""
        logits: Tensor = self.backbone((images - self.mean) / self.std).logits
        return logits


def from_hugging_face(name: str, normalization: str | None) -> HuggingFaceModel:
    """An id on the hub, or a folder as `save_pretrained` writes it; code that comes along is not run."""
    library = import_extra("transformers", needed_for=f"hf:{name}")
    try:
        model = fetched(
            lambda: library.AutoModelForImageClassification.from_pretrained(name, trust_remote_code=False),
            asks=not Path(name).exists(),
        )
    except Exception as error:  # on weights that are damaged, or more than weights, it raises anything
        if is_unanswered(error):
            raise ValueError(
                f"hf:{name} cannot be fetched: the hub does not answer, and no copy of it is on this machine; without "
                f"a network, name a folder as save_pretrained writes it"
            ) from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if (name.startswith((".", "~")) or name.count("/") > 1) and not Path(name).exists():
            reason = "there is no such folder, and an id on the hub reads organisation/name"
        raise ValueError(f"hf:{name} cannot be loaded: {reason}") from None
    channels = getattr(model.config, "num_channels", 3)
    known = None if normalization is not None else _processing(library, name)
    chosen = chosen_normalization(normalization, known, channels=channels, source=f"hf:{name}")
    return HuggingFaceModel(model, chosen, name=f"hf:{name}", origin=f"weights hf:{name}")


def _processing(library: Any, name: str) -> Normalization | None:
    """What its image processor does to images in [0, 1]; None where it has none."""
    try:
        config = fetched(
            lambda: library.AutoImageProcessor.from_pretrained(name, trust_remote_code=False).to_dict(),
            asks=not Path(name).exists(),
        )
    except (ImportError, OSError, ValueError):
        return None
    if not config.get("do_normalize", True):
        return NORMALIZATIONS["none"]
    return Normalization.found_in(config, "image_mean", "image_std")
