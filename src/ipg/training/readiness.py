"""Whether a run can begin: all that comes before its first step, on the CPU, without a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.training.assembly import Assembly
from ipg.training.device import own_randomness
from ipg.training.distributed import Team
from ipg.training.materials import Materials, gather

__all__ = ["get_ready"]


def get_ready(config: RunConfig, table: ImageTable, evaluate_on: Sequence[str]) -> Materials:
    """What a run of `config` on `table` is made of; an error says why it cannot be."""
    builder = "random" if config.pair_builder == "closest" else config.pair_builder  # which trains
    plain = config.with_changes(device="cpu", engine="eager", precision="fp32", pair_builder=builder)
    place = torch.device("cpu")
    with own_randomness(place):
        materials = gather(plain, table=table)
        Assembly(plain, materials, place, evaluate_on, Team()).method.close()
    return materials
