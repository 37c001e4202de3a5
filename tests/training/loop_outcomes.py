"""Outcomes of runs made comparable, for the tests of the training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

METHODS = ["erm", "oracle", "ipg", "joint", "continuous"]


def bits(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()])


def timeless(rows: Any) -> Any:
    """Rows without the time they took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
