"""A whole training state in one safetensors file: tensors as tensors, everything else as JSON in its header.

No pickle: loading a checkpoint runs no code. Writing is atomic: a killed run leaves the last whole checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ipg.files import replacing

__all__ = ["CheckpointError", "load_checkpoint", "save_checkpoint"]

FORMAT = "ipg-checkpoint-1"


class CheckpointError(ValueError):
    """A checkpoint that is missing, cut, or something else."""


def save_checkpoint(path: Path, state: Any) -> None:
    """Write `state`, any nesting of dicts, lists and tuples of tensors and plain values.

    Tensors are named by the way to them, so a plain `state_dict` is also what other programs expect.
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(state, "", tensors))
    with replacing(path) as temporary:  # not safetensors' save_file, which makes temporary files of its own
        temporary.write_bytes(save(tensors, metadata={"format": FORMAT, "structure": structure}))


def load_checkpoint(path: Path, *, device: torch.device | str = "cpu") -> Any:
    """Read what `save_checkpoint` wrote; tensors lie on `device`."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of this program (format {metadata.get('format')!r})")
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}  # or they would hold the file in use
        return _decode(json.loads(metadata["structure"]), tensors)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except CheckpointError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged and cannot be read ({error}); delete it to start again") from None


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; tensors move to `tensors` and leave their name."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a/b": …} beside {"a": {"b": …}}
            name += "'"
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)  # no memory shared with another
        return {"tensor": name}
    within = f"{name}/" if name else ""
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str | int)]:
            raise TypeError(f"a checkpoint cannot hold a key of type {type(wrong[0]).__name__}")
        return {"dict": [[key, _encode(item, f"{within}{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item, f"{within}{number}", tensors) for number, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in content}
    return {"list": list, "tuple": tuple}[kind](_decode(item, tensors) for item in content)
