"""A whole training state in one safetensors file: tensors as tensors, everything else as JSON in its header.

No pickle: loading a checkpoint runs no code. Writing is atomic: a killed run leaves the last whole checkpoint. A
checksum of all of it tells a damaged file from a state to go on from.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ipg.files import write_tensors

__all__ = ["CheckpointError", "load_checkpoint", "save_checkpoint"]

FORMAT = "ipg-checkpoint-2"
WITHOUT_CHECKSUM = "ipg-checkpoint-1"
"""What it was called before, still read."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, cut, or something else."""


def save_checkpoint(path: Path, state: Any) -> None:
    """Write `state`, any nesting of dicts, lists and tuples of tensors and plain values.

    Tensors are named by the way to them, so a plain `state_dict` is also what other programs expect.
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(state, "", tensors))
    metadata = {"format": FORMAT, "structure": structure, "checksum": _checksum(structure, tensors)}
    write_tensors(path, tensors, metadata)


def load_checkpoint(path: Path) -> Any:
    """Read what `save_checkpoint` wrote; tensors lie on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") not in (FORMAT, WITHOUT_CHECKSUM):
                raise CheckpointError(f"{path} is not a checkpoint of this program (format {metadata.get('format')!r})")
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}  # or they would hold the file in use
        structure = metadata["structure"]
        if metadata["format"] == FORMAT and metadata.get("checksum") != _checksum(structure, tensors):
            raise ValueError("its checksum is another")
        return _decode(json.loads(structure), tensors)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except CheckpointError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged and cannot be read ({error}); delete it to start again") from None


def _checksum(structure: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the structure and of names, kinds, shapes and bytes of all tensors."""
    found = zlib.crc32(structure.encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; tensors move to `tensors` and leave their name."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a/b": …} beside {"a": {"b": …}}
            name += "'"
        own = value.detach().to("cpu", copy=True)  # no memory shared with another
        tensors[name] = own.contiguous()
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
