"""Going on from a network that is trained already, its head kept."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ipg.config import EARLIER, TRAINED_RATE, RunConfig
from ipg.data.names import is_own
from ipg.data.reading import Reading
from ipg.evaluation.groups import evaluating, logits_of
from ipg.models import MODELS, ImageModel, build_model, freeze, load_model
from ipg.models.bcos import BcosNet
from ipg.models.explainable import is_explainable
from ipg.models.fitting import load_weights
from ipg.models.saved import UnnamedError
from ipg.models.small import SmallNet
from ipg.models.weights import read_weights
from ipg.rationale import find_head
from ipg.restarts import rate_after
from ipg.training.folder import MODEL, FolderError, Record, RunFolder, read_json

__all__ = ["as_started", "check_images", "network_name", "order_is_known", "require_data", "start_from"]


def as_started(config: RunConfig) -> RunConfig:
    """`config` with images of the size, and with the learning rate, of the run it goes on from, where it names none.

    On the same table it also reads the columns that the run read, where it renames none.

    The rate of a run that started from weights is taken over up to that which suits such networks: plain training
    bears more of them than corrections do. That of another optimizer says nothing. Of a run that did not, crops, flips
    and warm-up are taken over as well: what suits photographs does not suit digits.

    Raises:
        ValueError: that run has drawn another split of the same images, so that it may know those that are tested on.
    """
    known = _recorded(config.start).config if config.start is not None else {}
    drawn = Reading.kept(known).split_seed
    if known.get("data") == config.data and is_own(config.data) and drawn != config.split_seed:
        raise ValueError(
            f"{config.start} was trained on a split of {config.data} that was drawn with split_seed={drawn}; with "
            f"split_seed={config.split_seed} it may be tested on images that it knows. Give --split-seed {drawn}"
        )
    changes: dict[str, Any] = {}
    if known.get("data") == config.data and not Reading.of(config).renamed:
        changes |= {f"{role}_column": name for role, name in Reading.kept(known).renamed.items()}
    if config.size is None and isinstance(known.get("size"), int):
        changes["size"] = known["size"]
    rate, alike = known.get("learning_rate"), known.get("optimizer") == config.optimizer
    if config.is_auto("learning_rate") and isinstance(rate, int | float) and alike and not config.freeze:
        rate = rate_after(rate, _restarts(str(config.start)))  # it collapsed with the one that was asked for
        changes["learning_rate"] = rate if known.get("weights") is None else min(rate, TRAINED_RATE)
    if known and known.get("weights") is None and not config.freeze:
        changes |= {name: known.get(name, value) for name, value in EARLIER.items() if config.is_auto(name)}
    return config.with_changes(**changes)


def require_data(config: RunConfig) -> None:
    """ValueError where `config`, which was told of no data, would go on from a run with data of another name."""
    trained_on = _recorded(config.start).config.get("data") if config.start is not None else None
    if trained_on is not None and trained_on != config.data:
        raise ValueError(
            f"{config.start} was trained on {trained_on}: say what to go on with, e.g. --data {shlex.quote(trained_on)}"
        )


def start_from(config: RunConfig, images: Tensor, classes: Sequence[str]) -> nn.Module:
    """The trained network that `config.start` names, for `classes` and for images such as `images` (n, C, H, W).

    Raises:
        ValueError: it cannot be loaded, tells other classes apart, or does not take such images.
    """
    start = str(config.start)
    if config.weights is not None:
        raise ValueError(
            f"--from {start} brings its weights along: leave --weights {config.weights} out, or leave --from out to "
            f"train a new head on those weights"
        )
    model = _load(config, start, images, classes=len(classes))
    order_is_known(start, model, classes)
    head = model.head.out_channels if isinstance(model, BcosNet) else find_head(model).out_features
    ours = isinstance(model, SmallNet) and (head, len(classes)) == (1, 2)  # one logit, given as two
    if head != len(classes) and not ours:
        raise ValueError(
            f"{start} has {head} outputs and the data {len(classes)} classes ({', '.join(classes)}): to go on from its "
            f"head there has to be one for each; for a new head give the file as --weights"
        )
    check_images(model, start, images[:1], classes=classes)
    model.requires_grad_(True)
    if config.freeze:
        freeze(model)
    return model


def order_is_known(start: str, model: nn.Module, classes: Sequence[str]) -> bool:
    """Whether `start`, from which `model` is, says that its outputs are `classes` in this order.

    A run says so, and a network that names its outputs as the data does; other names say nothing.

    Raises:
        ValueError: it says that they are others, or in another order.
    """
    file = Path(start.rpartition("@")[2])  # also of a network of a library's
    kept = _recorded(start if file.name != MODEL else str(file.parent)).origin.get("classes")
    told = kept if kept is not None else getattr(model, "classes", None)
    known = [str(name) for name in told] if isinstance(told, list | tuple) else []
    alike = [name.casefold() for name in known] == [name.casefold() for name in classes]
    if known == list(classes) or (kept is None and alike):
        return True
    if kept is not None or {name.casefold() for name in known} == {name.casefold() for name in classes}:
        raise ValueError(
            f"{start} tells {', '.join(known)} apart, the data {', '.join(classes)}: the classes and their order have "
            f"to be the same, since its head is kept"
        )
    return False


def network_name(config: RunConfig, model: nn.Module) -> str | None:
    """What the network is called where it comes from; None for those that are known by `config.model`."""
    name = getattr(model, "name", None)
    if isinstance(name, str) and (isinstance(model, ImageModel) or is_explainable(name)):
        return name
    if config.start is None or isinstance(model, SmallNet):
        return None
    return config.start if config.start.startswith("python:") else _recorded(config.start).origin.get("network")


def _load(config: RunConfig, start: str, images: Tensor, *, classes: int) -> nn.Module:
    name = config.model
    if name is None or not Path(start).is_file():
        try:
            model = load_model(start, normalization=config.normalization)
        except UnnamedError as error:
            raise ValueError(f"{error}, or with --model, e.g. --model resnet50") from None
        found = model.name if isinstance(model, ImageModel | SmallNet) else name
        if name is not None and found != name:
            raise ValueError(f"{start} is a {found}, not a {name}: leave --model out")
        return model
    if name not in MODELS:  # a file that need not name its network
        return load_model(f"timm:{name}@{start}", normalization=config.normalization)
    channels, size = images.shape[1], images.shape[-1]
    model = build_model(name, channels=channels, classes=classes, normalization=config.normalization, size=size)
    load_weights(model, read_weights(start), name=name, new_head=False)
    return model


def _recorded(start: str) -> Record:
    """What is written of the run in the folder `start`; nothing where it is no run's folder."""
    try:
        return RunFolder(Path(start)).recorded()
    except FolderError:
        return Record({}, {}, {})


def _restarts(start: str) -> int:
    """How often the run in the folder `start` has begun again, each time with half the learning rate."""
    try:
        found = read_json(Path(start) / "result.json").get("restarted")
    except FolderError:
        found = None
    return found if isinstance(found, int) else 0


def check_images(model: nn.Module, name: str, images: Tensor, *, classes: Sequence[str] | None) -> None:
    """Pass uint8 `images` (n, C, H, W) through; ValueError where `model` does not take them or gives other classes."""
    shape = "x".join(str(side) for side in images.shape[1:])
    place = next(model.parameters(), images).device
    try:
        with evaluating(model):
            logits = logits_of(model(images.to(place).float() / 255))
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} does not take images of {shape}: {reason}") from None
    if logits.ndim != 2 or len(logits) != len(images):
        raise ValueError(
            f"{name} gives {len(images)} images an output of shape {tuple(logits.shape)}; expected logits, a row for "
            f"each"
        )
    outputs = logits.shape[1]
    if classes is not None and outputs != len(classes) and (outputs, len(classes)) != (1, 2):
        raise ValueError(f"{name} has {outputs} outputs; expected one for each of {', '.join(classes)}")
