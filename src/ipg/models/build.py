"""The network to train, from names; and what to say of it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from ipg.models.backbones import HUBS, PRETRAINED, check_name, timm_model
from ipg.models.bcos import BcosNet
from ipg.models.explainable import explainable_model, is_explainable
from ipg.models.fitting import load_weights
from ipg.models.head import freeze as freeze_backbone
from ipg.models.head import renew_head
from ipg.models.image_model import ImageModel
from ipg.models.normalization import NORMALIZATIONS
from ipg.models.small import MODELS, build_small
from ipg.models.weights import read_weights
from ipg.rationale import HeadTap, find_head

__all__ = ["build_model", "check_named", "describe"]


def build_model(
    name: str,
    *,
    channels: int,
    classes: int,
    weights: str | None = None,
    normalization: str | None = None,
    freeze: bool = False,
    size: int | None = None,
) -> nn.Module:
    """A network for images in [0, 1], its head new; what is random comes from torch's default generator.

    Args:
        name: one of `MODELS`, any name of timm, `hf-hub:org/name`, or `bcos_…`, `xdnn_…` (`ipg.models.explainable`).
        channels: of the images.
        classes: to tell apart.
        weights: a safetensors or torch file, `pretrained` for timm's own, or `hf-hub:org/name`; random if not given.
        normalization: `imagenet`, `half`, `none` or "means/stds"; what the weights were trained with if not given.
        freeze: let only the head learn.
        size: side of the images; where given, one is passed through, so that a network that cannot take them says so.

    Raises:
        ValueError: the message says which of these cannot be, and what can.
    """
    if name in MODELS:
        model = _small(name, channels, classes, size, weights, normalization)
    elif is_explainable(name):
        model = explainable_model(
            name, channels=channels, classes=classes, weights=weights or None, normalization=normalization
        )
    else:
        model = timm_model(
            name, channels=channels, classes=classes, weights=weights or None, normalization=normalization
        )
    if freeze:
        freeze_backbone(model)
    if size is not None:
        _check_images(model, name, (1, channels, size, size))
    return model


def check_named(name: str, weights: str | None) -> None:
    """ValueError where there is no network of that name, or no file with its weights: before anything is built."""
    if name not in MODELS and not is_explainable(name):
        check_name(name)
    if weights and weights != PRETRAINED and not weights.startswith(HUBS) and not Path(weights).exists():
        raise ValueError(f"there is no file {weights} with weights")


def describe(model: nn.Module) -> str:
    """One line on a network: its size, its features, where its weights come from, what it does to images."""
    count = sum(parameter.numel() for parameter in model.parameters())
    features = model.head.in_channels if isinstance(model, BcosNet) else find_head(model).in_features
    size = f"{count / 1e6:.1f} M" if count >= 999_500 else f"{count / 1e3:.0f} k" if count >= 1_000 else f"{count}"
    parts = [f"{size} parameters", f"{features:,} features"]
    if not isinstance(model, ImageModel):
        return f"{type(model).__name__}: {', '.join(parts)}"
    known = {named.over(model.mean.shape[1]): name for name, named in NORMALIZATIONS.items()}
    parts += [model.origin, f"normalization {known.get(model.normalization, model.normalization)}"]
    return f"{model.name}: {', '.join(parts)}" + (", backbone frozen" if model.frozen else "")


def _small(
    name: str, channels: int, classes: int, size: int | None, weights: str | None, normalization: str | None
) -> nn.Module:
    """One of our own networks, which take images as they are."""
    if normalization not in (None, "none"):
        raise ValueError(f"{name} takes images as they are; leave normalization={normalization!r} out")
    if weights == PRETRAINED:
        raise ValueError(f"there are no pretrained weights of {name}; give a file, or leave weights out")
    model = build_small(name, channels=channels, classes=classes, size=size)
    if weights is not None:
        load_weights(model, read_weights(weights), name=name, new_head=True)
        renew_head(model)
    return model


def _check_images(model: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """Pass one image through, listening at the head where it is a linear one."""
    mode = model.training
    tap = None if isinstance(model, BcosNet) else HeadTap(find_head(model))
    try:
        with torch.no_grad(), nullcontext() if tap is None else tap.listen():
            model.eval()(torch.zeros(shape))
        if tap is not None:
            tap.take()
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(f"{name} does not take images of {shape[1]}x{shape[2]}x{shape[3]}: {error}") from None
    finally:
        if tap is not None:
            tap.remove()
        model.train(mode)
