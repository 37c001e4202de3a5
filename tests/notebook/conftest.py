"""What runs in a notebook train on: objects of one's own, and names."""

from __future__ import annotations

from typing import Any

import pytest
from stripes import SMALL, net, repainted, stripes

from ipg.data.load import DATASETS


@pytest.fixture
def own() -> dict[str, Any]:
    """A table, a network and pairs of one's own."""
    table = stripes()
    return {"model": net(), "data": table, "pairs": repainted(table, "train", 24), "every": 1, **SMALL}


@pytest.fixture
def bars(make_table, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A data set that is there by its name for the test alone, and how to train on it."""
    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))
    return {"data": "bars", "pairs": 8, "held_out_pairs": 8, **SMALL}
