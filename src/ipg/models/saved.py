"""Networks that were trained here: the folder of a run, or a file that `save_weights` wrote."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ipg.files import parse_json
from ipg.models.backbones import trained_timm_model
from ipg.models.explainable import is_explainable, trained_explainable_model
from ipg.models.fitting import load_weights
from ipg.models.libraries import from_hugging_face, from_torchvision
from ipg.models.small import MODELS, SmallNet, rebuild_small
from ipg.models.weights import Weights, read_weights

__all__ = ["UnnamedError", "from_path"]


class UnnamedError(ValueError):
    """A file of weights that names no network."""


def from_path(path: Path, normalization: str | None) -> nn.Module:
    """The network of a finished run, or of weights that name their architecture."""
    if path.is_dir():
        name, file = _run_model(path), path / "model.safetensors"
        if not file.exists():
            raise ValueError(f"the run in {path} is not finished; the command that began it goes on with it")
        read = read_weights(file)
    elif path.suffix == ".pt2":
        raise ValueError(
            f"{path} is an exported program, and reading it could run code; load it in code of yours and "
            f"name that as python:file.py:function"
        )
    else:
        read, file = read_weights(path), path
        name = read.architecture
        if name is None or " " in name:
            if (path.parent / "config.json").exists():
                raise ValueError(
                    f"{path} does not say which network it is of; the run does that it lies in: name {path.parent}"
                )
            raise UnnamedError(f"{path} does not say which network it is of; name it, as in timm:resnet50@{path}")
    if name is None or name in MODELS:
        return _small(read, name)
    if is_explainable(name):
        with torch.random.fork_rng(devices=[]):
            return trained_explainable_model(name, read)
    if name.startswith("python:"):
        raise ValueError(
            f"the network of {path} is made by your code ({name}), which is not run because a file says so; name a "
            f"function that makes it and loads {file.name}, as python:file.py:function"
        )
    if name.startswith("hf:"):
        known = None if read.normalization is None else str(read.normalization)
        model = from_hugging_face(name.partition(":")[2], normalization or known)
        load_weights(model.backbone, read, name=name, new_head=False)
        return model
    if name.startswith("torchvision:"):
        return from_torchvision(f"{name.partition(':')[2]}@{file}", normalization)
    try:
        return trained_timm_model(name, read, normalization=normalization)
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None


def _run_model(folder: Path) -> str | None:
    """What the run calls its network; None where it took what suits the data, which is one of our own."""
    try:
        stored = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        name = stored.get("origin", {}).get("network") or stored["config"]["model"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder} is not the folder of a run: it has no config.json that names a model") from None
    return None if name is None else str(name)


def _small(read: Weights, name: str | None) -> SmallNet:
    """One of our own networks, recognised by the shapes of its layers."""
    with torch.random.fork_rng(devices=[]):
        model = rebuild_small(name, read.tensors)
    if model is None:
        widths = tuple(len(tensor) for key, tensor in sorted(read.tensors.items()) if tensor.ndim > 1)
        raise ValueError(f"{read.source} does not fit {name or ' or '.join(MODELS)}: its layers are {widths} wide")
    load_weights(model, read, name=str(model.name), new_head=False)
    return model
