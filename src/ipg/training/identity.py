"""What makes a run this run and no other, so that a folder is not taken up by another one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ipg.config import RunConfig
from ipg.methods import method_class
from ipg.methods.options import parse_options
from ipg.training.materials import Materials
from ipg.training.provenance import provenance
from ipg.training.start import network_name

__all__ = ["identify", "settled"]

_NO_MATTER = ("device", "data_path", "engine", "shard", "resident")
"""Settings that may change when a run is taken up again."""


def identify(config: RunConfig, materials: Materials, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes a run this run and no other, and where it comes from."""
    settings = {key: value for key, value in settled(config).items() if key not in _NO_MATTER}
    pairs, held_out, masks, table = materials.pairs, materials.held_out, materials.masks, materials.table
    origin = {
        **provenance(device),
        "data_path": config.data_path,
        "started_in": _here(),
        "named": materials.named,
        "network": network_name(config, materials.model),
        "classes": list(table.classes),
        "shape": list(table.images.shape[1:]),
        "pairs": 0 if pairs is None else len(pairs),
        "held_out_pairs": 0 if held_out is None else len(held_out),
        **({} if masks is None else {"masks": int((masks.amax(dim=(1, 2, 3)) > 0).sum())}),
    }
    return {"config": settings, "data": materials.fingerprints()}, {"origin": origin}


def _here() -> str | None:
    """The folder that relative paths are seen from; None where it is gone."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def settled(config: RunConfig) -> dict[str, Any]:
    """The flat configuration with all of the method's own options, each of its type."""
    return config.flat() | asdict(parse_options(method_class(config.method), config.options))
