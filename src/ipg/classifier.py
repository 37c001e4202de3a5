"""A trained network and what it takes to show it images: their size, how they become square, what its classes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipg.data.coloring import gray
from ipg.data.decode import Fit
from ipg.data.waterbirds import RELEASES
from ipg.evaluation.groups import evaluating, logits_of
from ipg.methods import method_class
from ipg.models import ImageModel, load_model
from ipg.training.device import resolve_device
from ipg.training.folder import FolderError, RunFolder
from ipg.training.start import check_images

__all__ = ["Classifier", "fit_of", "is_run", "open_classifier", "open_run", "seen"]

SIZE = 224
"""The side of images where neither a run nor the user says it."""


@dataclass(frozen=True)
class Classifier:
    """A trained network, ready for images."""

    model: nn.Module
    shape: tuple[int, int, int]
    """What it takes: channels, height, width."""
    classes: tuple[str, ...] | None = None
    """The names of its outputs, where they are known."""
    fit: Fit = "crop"
    """How an image becomes square."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run that trained it, flat; empty where it is of no run."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where the run comes from."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """What the run measured."""

    @property
    def path_column(self) -> str:
        """What the run's own table calls the column that names the images."""
        return str(self.config.get("path_column") or "path")

    def probabilities(self, images: Tensor) -> Tensor:
        """How likely each class is for each of the uint8 `images` (N, C, H, W): (N, K), on the CPU."""
        place = next(self.model.parameters(), images).device
        with evaluating(self.model):
            logits = logits_of(self.model(self.seen(images).to(place).float() / 255)).float().cpu()
        if logits.shape[1] == 1:  # the sign of a single one tells two classes apart
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        return logits.softmax(dim=1)

    def seen(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W) as the network takes them: as its method turns two channels, or else as `seen`."""
        channels = self.shape[0]
        if images.shape[1] != channels and "method" in self.config:
            turned = method_class(str(self.config["method"])).transform(images[:, :2])
            images = turned if turned.shape[1] == channels else images
        return seen(images, channels)

    def check_classes(self, spec: str, classes: Sequence[str]) -> None:
        """ValueError where its outputs are known to have other names than `classes`, or another order."""
        if self.classes is not None and self.classes != tuple(classes):
            raise ValueError(
                f"{spec} tells {', '.join(self.classes)} apart, in this order; the data has {', '.join(classes)}: "
                f"measure it on data of its own classes"
            )


def is_run(spec: str) -> bool:
    """Whether `spec` is the folder of a run."""
    return Path(spec).is_dir() and ":" not in spec


def open_run(folder: Path, *, network: str | None = None, device: str = "auto") -> Classifier:
    """The network of a finished run; its data is not needed.

    Args:
        folder: of the run.
        network: what makes the network that the run's weights go into, as `load_model` takes it, where the run may not
            say so: code of the user's is not run because a folder names it.
        device: where it goes.

    Raises:
        FolderError: it is no run, not finished or damaged.
        ValueError: `network` makes another one.
    """
    where = resolve_device(device)
    home = RunFolder(folder)
    config, _, origin = home.recorded()
    if (found := home.finished()) is None:
        raise home.unfinished()
    result = found[2]
    if not isinstance(result.get("metrics"), dict):
        raise home.damaged(home.result)
    if "classes" not in origin or "shape" not in origin:
        raise FolderError(f"{folder} does not say which classes it tells apart; train it again in another folder")
    channels, height, width = origin["shape"]
    model = load_model(folder if network is None else network, device=where)
    if network is not None:
        try:
            model.load_state_dict(found[0])
        except (RuntimeError, TypeError):
            told = f"{network} makes another network than that of {folder}: the run's weights do not fit"
            raise ValueError(told) from None
    return Classifier(
        model=model,
        shape=(channels, height, width),
        classes=tuple(origin["classes"]),
        fit=fit_of(str(config.get("data"))),
        config=config,
        origin=origin,
        result=result,
    )


def open_classifier(
    spec: str,
    *,
    size: int | None = None,
    classes: Sequence[str] | None = None,
    normalization: str | None = None,
    device: str = "auto",
) -> Classifier:
    """A trained network of any kind that `load_model` takes; `open_run` knows more of a run.

    Args:
        spec: which.
        size: the side of its images; 224 where not given.
        classes: the names of its outputs, in their order; not known where not given.
        normalization: what its weights were trained with, where they do not say.
        device: where it goes.

    Raises:
        ValueError: it cannot be loaded, or has another number of classes.
    """
    count = None if classes is None else len(classes)
    model = load_model(spec, classes=count, normalization=normalization, device=resolve_device(device))
    side = SIZE if size is None else size
    shape = (_channels(model), side, side)
    check_images(model, spec, torch.zeros(1, *shape, dtype=torch.uint8), classes=classes)
    return Classifier(model, shape, None if classes is None else tuple(classes))


def seen(images: Tensor, channels: int) -> Tensor:
    """Images (N, C, H, W) with the channels that a network takes: all, the first two, or these in one."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] < channels or channels > 2:
        raise ValueError(f"the network takes images of {channels} channels; these have {images.shape[1]}")
    return images[:, :2] if channels == 2 else gray(images[:, :2])


def fit_of(data: str) -> Fit:
    """How images of a data set become square, by its name."""
    release = data.replace("-", "_").removesuffix("_reverse")
    return RELEASES[release][1] if release in RELEASES else "crop"


def _channels(model: nn.Module) -> int:
    """How many channels the images of a network have: 3 where it does not show."""
    if isinstance(model, ImageModel):
        return model.mean.shape[1]
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    return next((layer.in_channels for layer in layers), 3)
