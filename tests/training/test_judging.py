"""What a network is worth at the end of an epoch."""

from __future__ import annotations

from unittest.mock import patch

import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.load import load
from ipg.training.distributed import Team
from ipg.training.judging import Judge
from ipg.training.materials import Materials, gather

CONFIG = RunConfig(pairs=8, held_out_pairs=4, epochs=1)


def judge(materials: Materials, fast: nn.Module) -> Judge:
    return Judge(CONFIG, materials, ("validation",), materials.model, fast, Team(), None)


def test_a_compiled_network_is_prepared_with_the_one_batch_that_evaluation_uses() -> None:
    materials = gather(CONFIG, table=load("colored_fashion", size=14))
    sizes = []

    def count(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        sizes.append(next(len(value) for value in inputs if value.ndim == 4 and value.shape[1] == 2))
        return module

    torch._dynamo.reset()
    fast = torch.compile(materials.model, dynamic=False, backend=count)
    with patch("ipg.evaluation.groups.EVALUATION_BATCH_CPU", 64):
        found = judge(materials, fast)  # type: ignore[arg-type]
        found.prepare()
        assert sizes == [64]
        found.evaluate(row := {})
    assert sizes == [64]  # nothing was compiled any more
    assert 0 <= row["validation"]["average"] <= 1


def test_a_network_as_it_is_needs_no_preparation() -> None:
    materials = gather(CONFIG, table=load("colored_fashion", size=14))
    with patch.object(type(materials.model), "forward") as forward:
        judge(materials, materials.model).prepare()
    forward.assert_not_called()
