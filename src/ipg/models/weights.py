"""Weights in files: read without running code, written for other programs."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ipg.files import parse_json, write_tensors
from ipg.models.bcos import BcosNet
from ipg.models.image_model import ImageModel
from ipg.models.normalization import Normalization
from ipg.models.small import SmallNet

__all__ = ["Weights", "plain_state_dict", "read_weights", "save_weights", "some"]

_NESTS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model", "module")
"""Where timm, torchvision, Lightning, DeepSpeed and the tutorials of torch keep the weights of a checkpoint; averaged
ones first."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Weights:
    """What a file of weights holds."""

    tensors: Tensors
    source: str
    """The file's name."""
    normalization: Normalization | None = None
    """The statistics that the file names."""
    architecture: str | None = None
    """The network that the file names."""


def read_weights(path: str | Path) -> Weights:
    """Read a safetensors file, or a `.pth`, `.pt`, `.bin` or `.ckpt` of torch; no code in it is run.

    Raises:
        ValueError: there is no such file, it is damaged, or it holds more than weights.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file with the weights in it, such as model.safetensors")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path} with weights") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if empty:
        raise ValueError(f"{path} is empty; fetch or save the weights again")
    held, metadata = _read_safetensors(path) if path.suffix == ".safetensors" else (_read_torch(path), {})
    tensors = _tensors(held, path)
    if wrong := [name for name, t in tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]:
        raise ValueError(f"{path} has NaN or infinity in {some(wrong)}; use weights of a run that went well")
    return Weights(
        tensors, path.name, _normalization(path, tensors, metadata), architecture=metadata.get("architecture")
    )


def _read_safetensors(path: Path) -> tuple[Any, dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}); fetch or save it again") from None


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([Namespace]):  # timm keeps its arguments
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} holds more than weights ({found[1]}), and reading that could run code; it was not read. Where "
                f"you trust it, save its state_dict() alone, best as safetensors."
            ) from None
        raise _damaged(path) from None
    except Exception:  # what torch says of a damaged file can be anything
        if _is_script(path):
            raise ValueError(
                f"{path} is a TorchScript program, and reading it could run code; load it in code of yours "
                f"(torch.jit.load) and name that as python:file.py:function"
            ) from None
        raise _damaged(path) from None


def _is_script(path: Path) -> bool:
    """Whether it is what `torch.jit.save` writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except Exception:  # as above
        return False


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged or no file of torch weights; fetch or save it again")


def _tensors(held: Any, path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, from where such programs keep them."""
    for _ in range(3):  # nests in nests
        if isinstance(held, Mapping):
            held = next((held[nest] for nest in _NESTS if isinstance(held.get(nest), Mapping)), _only_nest(held))
    tensors = {k: v for k, v in held.items() if isinstance(v, Tensor)} if isinstance(held, Mapping) else {}
    if not tensors:
        inside = some([str(key) for key in held]) if isinstance(held, Mapping) else f"a {type(held).__name__}"
        raise ValueError(f"{path} holds no weights by name, only {inside or 'nothing'}; save a model's state_dict()")
    return tensors


def _only_nest(held: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The one part of a checkpoint that is tensors by name, whatever it is called; all of it where there is no such."""
    loose = sum(isinstance(value, Tensor) for value in held.values())
    nests = [
        part
        for part in held.values()
        if isinstance(part, Mapping) and len(part) > loose and all(isinstance(t, Tensor) for t in part.values())
    ]
    return nests[0] if len(nests) == 1 else held


def _normalization(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> Normalization | None:
    """What the file says of itself: a run of ours, safetensors metadata, or timm's `config.json` beside it."""
    if {"mean", "std"} <= set(tensors) and any(name.startswith("backbone.") for name in tensors):
        return Normalization.of(tensors["mean"], tensors["std"])
    if (found := Normalization.found_in(metadata)) is not None:
        return found
    try:
        described = parse_json(path.with_name("config.json").read_text(encoding="utf-8"))
        return Normalization.found_in(described.get("pretrained_cfg", described))
    except (OSError, ValueError, AttributeError):
        return None


def some(names: list[str], most: int = 3) -> str:
    """The first of `names`, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plain_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The weights of `model` by the names of its library (timm, …), to load them elsewhere."""
    return dict(model.backbone.state_dict() if isinstance(model, ImageModel) else model.state_dict())


def save_weights(path: str | Path, model: nn.Module) -> None:
    """Write `plain_state_dict(model)` as safetensors, with architecture, mean and std in its metadata."""
    metadata = {}
    if isinstance(model, ImageModel):
        mean, _, std = str(model.normalization).partition("/")
        metadata = {"architecture": model.name, "mean": mean, "std": std}
    elif isinstance(model, SmallNet | BcosNet) and model.name is not None:
        metadata = {"architecture": model.name}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in plain_state_dict(model).items()}
    write_tensors(Path(path), tensors, metadata)
