"""Networks whose attributions add up to their logits, by name: `bcos_…` and `xdnn_…` of a small network or a ResNet."""

from __future__ import annotations

from torch import nn

from ipg.models.backbones import PRETRAINED, headless_timm_model, timm_model
from ipg.models.bcos import BcosNet
from ipg.models.fitting import load_weights
from ipg.models.head import renew_head
from ipg.models.image_model import ImageModel
from ipg.models.small import MODELS, ConvNet, build_small
from ipg.models.weights import Weights, read_weights
from ipg.models.xdnn import make_xdnn

__all__ = ["explainable_model", "is_explainable", "trained_explainable_model"]

BCOS, XDNN = "bcos_", "xdnn_"


def is_explainable(name: str) -> bool:
    """Whether a network of this name is made here."""
    return name.startswith((BCOS, XDNN))


def explainable_model(
    name: str, *, channels: int, classes: int, weights: str | None = None, normalization: str | None = None
) -> nn.Module:
    """The B-cos or X-DNN form of a network.

    Args:
        name: `bcos_` or `xdnn_`, and the name of a small convolutional network or of a ResNet of timm.
        channels: of the images.
        classes: to tell apart.
        weights: a file of such a network's weights; random where not given.
        normalization: for an `xdnn_` ResNet, see `Normalization.parse`; all others take images as they are.
    """
    if weights == PRETRAINED:
        raise ValueError(f"there are no pretrained weights of {name} to fetch; give a file, or leave weights out")
    if name.startswith(BCOS):
        return _bcos(name, channels, classes, weights, normalization)
    base = name.removeprefix(XDNN)
    if base in MODELS:
        _as_it_is(name, normalization)
        model: nn.Module = _small(name, base, channels, classes)
        bare = model
    else:
        model = timm_model(base, channels=channels, classes=classes, normalization=normalization)
        bare, model.name = model.backbone, name
    make_xdnn(bare, name=name)
    if weights is not None:
        read = read_weights(weights)
        load_weights(bare, read, name=name, new_head=True)
        if isinstance(model, ImageModel):
            model.origin = f"weights from {read.source}"
    renew_head(model)
    return model


def trained_explainable_model(name: str, weights: Weights) -> nn.Module:
    """The network of that name with the channels and the head that its `weights` have."""
    tensors = weights.tensors
    head = tensors.get("head.weight", next((value for value in tensors.values() if value.ndim == 2), None))
    widths = [value.shape[1] for value in tensors.values() if value.ndim == 4]
    if head is None or not widths:
        raise ValueError(f"{weights.source} does not fit {name}: it has no convolution or no head")
    channels = min(widths) // (2 if name.startswith(BCOS) else 1)  # the first layer has the fewest
    known = None if weights.normalization is None else str(weights.normalization)
    model = explainable_model(name, channels=channels, classes=len(head), normalization=known)
    bare = model.backbone if isinstance(model, ImageModel) else model
    load_weights(bare, weights, name=name, new_head=False)
    return model


def _bcos(name: str, channels: int, classes: int, weights: str | None, normalization: str | None) -> BcosNet:
    _as_it_is(name, normalization)
    base = name.removeprefix(BCOS)
    if base in MODELS:
        small = _small(name, base, 2 * channels, classes)
        body, features = small.body, small.head.in_features
    else:
        body, features = headless_timm_model(base, channels=2 * channels)
    model = BcosNet(body, channels=channels, features=features, classes=classes, name=name)
    if weights is not None:
        load_weights(model.body, read_weights(weights), name=name, new_head=False)
    return model


def _small(name: str, base: str, channels: int, classes: int) -> ConvNet:
    made = build_small(base, channels=channels, classes=classes)
    if not isinstance(made, ConvNet):
        raise ValueError(f"{name} cannot be made: {base} is no convolutional network; take {name[:5]}small_cnn")
    made.name = name
    return made


def _as_it_is(name: str, normalization: str | None) -> None:
    if normalization not in (None, "none"):
        raise ValueError(f"{name} takes images as they are; leave normalization={normalization!r} out")
