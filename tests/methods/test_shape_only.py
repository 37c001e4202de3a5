"""Shape-only training sees no colour, and is plain training otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.training.materials import gather


def test_everything_it_meets_is_shape(make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    materials = gather(RunConfig(method="shape_only", held_out_pairs=8), table=table)
    assert materials.table.images.shape == (200, 4, 8, 8)
    assert torch.equal(materials.table.group, table.group)  # groups are still those of the colours
    assert materials.held_out is not None
    assert torch.equal(materials.held_out.first, materials.held_out.second)  # recoloured pairs
    assert materials.model(materials.table.images[:3].float()).shape == (3, 2)


def test_a_network_cannot_tell_colours_apart(one_epoch: Any) -> None:
    assert one_epoch("shape_only").result["metrics"]["pair_disagreement"] == 0


def test_photographs_are_refused(make_table: Callable[..., ImageTable], one_epoch: Any) -> None:
    table = make_table()
    photographs = replace(table, images=table.images[:, [0, 1, 1]])
    with pytest.raises(ValueError, match="these images have 3 channels: take another method"):
        one_epoch("shape_only", table=photographs)
