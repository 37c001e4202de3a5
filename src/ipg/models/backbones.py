"""Networks of timm, by any of its names: random, from its hub, or from a file."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ipg.models.extras import import_extra
from ipg.models.fitting import classes_in, load_weights
from ipg.models.head import renew_head
from ipg.models.hub import fetched, is_unanswered
from ipg.models.image_model import ImageModel
from ipg.models.normalization import Normalization
from ipg.models.small import MODELS
from ipg.models.weights import Weights, read_weights
from ipg.rationale import HeadNotFoundError
from ipg.words import did_you_mean

__all__ = [
    "HUBS",
    "PRETRAINED",
    "check_name",
    "chosen_normalization",
    "headless_timm_model",
    "timm_model",
    "trained_timm_model",
]

PRETRAINED = "pretrained"
"""As `weights`: those of timm's own hub."""
FOLDER = "local-dir:"
HUBS = ("hf-hub:", "hf_hub:", FOLDER)
"""How names begin that timm looks up on a hub or in a folder."""


def timm_model(
    name: str, *, channels: int, classes: int, weights: str | None = None, normalization: str | None = None
) -> ImageModel:
    """A network of timm with a new head.

    Args:
        name: a name of timm, with a tag or without, or `hf-hub:org/name`, which brings its weights along.
        channels: of the images.
        classes: to tell apart.
        weights: a file, `pretrained` for timm's own, `hf-hub:org/name`; random where not given.
        normalization: see `Normalization.parse`; that of the weights where not given.
    """
    with _in_words(name):
        made = _make(name, weights, channels=channels, classes=classes, normalization=normalization)
        renew_head(made)
    return made


def headless_timm_model(name: str, *, channels: int) -> tuple[nn.Module, int]:
    """A random network of timm up to its last feature maps (B, D, H, W), and D."""
    with _in_words(name):
        made = _create(name, pretrained=False, in_chans=channels, num_classes=0, global_pool="")
    return made, int(made.num_features)


def trained_timm_model(name: str, weights: str | Weights, *, normalization: str | None = None) -> ImageModel:
    """A network of timm with the channels and the head that `weights` have."""
    with _in_words(name):
        return _make(name, weights, channels=None, classes=None, normalization=normalization)


def chosen_normalization(
    given: str | None, known: Normalization | None, *, channels: int, source: str
) -> Normalization:
    """The normalisation that was asked for, else the one the weights are known to have; ValueError without either."""
    if given is not None:
        return Normalization.parse(given, channels=channels)
    if known is None:
        raise ValueError(
            f"{source} does not say how images were normalised when it was trained; say it with --normalization "
            f"(in Python normalization=): imagenet (most weights), half (mean and std 0.5), none, or means/stds as "
            f"numbers"
        )
    return known.over(channels)


def _make(
    name: str, weights: str | Weights | None, *, channels: int | None, classes: int | None, normalization: str | None
) -> ImageModel:
    """The network; channels and classes that are not given are as the weights have them, and then so is the head."""
    if name.startswith(HUBS) and weights is None:
        weights = PRETRAINED
    if isinstance(weights, str) and weights != PRETRAINED and not weights.startswith(HUBS):
        weights = read_weights(weights)
    if isinstance(weights, Weights):
        known, origin = weights.normalization, f"weights from {weights.source}"
        channels = channels or (len(known.mean) if known is not None else 3)
        model = _from_file(name, weights, channels=channels, classes=classes)
    else:
        model = _from_timm(name, weights, channels=channels, classes=classes)
        known = Normalization.found_in(model.pretrained_cfg)
        origin = "random weights" if weights is None else f"weights {_tagged(model)}"
    chosen = chosen_normalization(
        normalization, known, channels=channels or 3, source=origin.removeprefix("weights from ")
    )
    return ImageModel(model, chosen, name=name, origin=origin)


def _from_file(name: str, weights: Weights, *, channels: int, classes: int | None) -> Any:
    """With the weights of a file, and with its head where `classes` are not given."""
    new_head = classes is not None
    if classes is None:
        classes = classes_in(_create(name, pretrained=False, in_chans=channels), weights)
    model = _create(name, pretrained=False, in_chans=channels, num_classes=classes)
    load_weights(model, weights, name=name, new_head=new_head, convert=lambda tensors: _converted(tensors, model))
    return model


@contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Check the name; inside, say of a network without a linear head that it cannot be used."""
    check_name(name)
    try:
        yield
    except HeadNotFoundError as error:
        found = str(error).partition(". ")[0]
        raise ValueError(f"{name} cannot be used, since rationales need one linear head: {found}") from None


def check_name(name: str) -> None:
    """ValueError where timm has no network of that name."""
    timm = import_extra("timm", needed_for=f"model {name!r}, none of {', '.join(MODELS)},")
    if name.startswith(HUBS) or timm.is_model(name):
        return
    known = timm.list_models()
    near = difflib.get_close_matches(name, known, n=4) or [found for found in known if name in found][:4]
    hint = did_you_mean(name, MODELS)
    raise ValueError(
        f"there is no model {name!r}; {f'{hint} T' if hint else 't'}here are {', '.join(MODELS)} and the names of timm"
        + (f", such as {', '.join(near)}" if near else "; timm.list_models() gives them all")
    )


def _from_timm(name: str, weights: str | None, *, channels: int | None, classes: int | None) -> Any:
    """As timm makes and fetches it."""
    source = weights if weights is not None and weights != PRETRAINED else name
    model = _create(source, pretrained=weights is not None, in_chans=channels, num_classes=classes)
    found, wanted = model.pretrained_cfg.get("architecture"), name.partition(".")[0]
    if source != name and not name.startswith(HUBS) and found != wanted:
        raise ValueError(f"{source} holds weights of {found}, not of {wanted}; name that model, or other weights")
    return model


def _create(name: str, *, pretrained: bool, **options: Any) -> Any:
    """timm's `create_model`, for images of any size where the network can; its errors in our words."""
    timm = import_extra("timm", needed_for=f"model {name!r}")
    state = torch.get_rng_state()

    def made() -> Any:
        torch.set_rng_state(state)  # an attempt before, without the weights, has drawn some
        config = None if name.startswith(HUBS) else timm.get_pretrained_cfg(name, allow_unregistered=True)
        if config is not None and config.fixed_input_size:
            try:
                return timm.create_model(name, pretrained=pretrained, dynamic_img_size=True, **options)
            except TypeError as error:
                if "dynamic_img_size" not in str(error):
                    raise
        return timm.create_model(name, pretrained=pretrained, **options)

    try:
        return fetched(made, asks=not name.startswith(FOLDER) and (pretrained or name.startswith(HUBS)))
    except Exception as error:  # on weights that are damaged, or more than weights, it raises anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if isinstance(error, OSError):
            if is_unanswered(error):
                reason = "the hub does not answer, and no copy of them is on this machine"
            raise ValueError(
                f"the weights of {name} cannot be fetched: {reason}; without a network, give weights as a file"
            ) from None
        raise ValueError(f"timm cannot make {name!r}: {reason}") from None


def _tagged(model: Any) -> str:
    """The name of timm's or a hub's weights, the tag of their training included."""
    config: Mapping[str, Any] = model.pretrained_cfg
    if config.get("source") in ("hf-hub", "local-dir"):
        return str(config.get("hf_hub_id") or config.get("file"))
    return ".".join(str(part) for part in (config.get("architecture"), config.get("tag")) if part)


def _converted(tensors: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """`tensors` of another release, image size or number of channels as `model` has them, by timm's own rules."""
    if callable(rename := getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)):
        tensors = rename(tensors, model)
    wanted = model.state_dict()
    first = model.pretrained_cfg.get("first_conv") or ()
    for key in (f"{layer}.weight" for layer in ((first,) if isinstance(first, str) else first)):
        if tensors[key].shape != wanted[key].shape:
            models = import_extra("timm", needed_for="another number of channels").models
            tensors[key] = models.adapt_input_conv(wanted[key].shape[1], tensors[key])
    return tensors
