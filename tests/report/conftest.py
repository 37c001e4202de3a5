"""A small made-up report: two runs, two classes in two colours, tiny random images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.report.page import Flip, Look, PageData
from ipg.report.views import PairAnswers, RunView

CLASSES = ("garment", "shoe")


def make_metrics(red: float | None, green: float | None) -> dict[str, Any]:
    known = [value for value in (red, green) if value is not None]
    return {
        "average": sum(known) / len(known),
        "group_mean": sum(known) / len(known),
        "worst_group": min(known),
        "balanced": sum(known) / len(known),
        "groups": {
            "garment, red": {"accuracy": red, "count": 1200},
            "garment, green": {"accuracy": green, "count": 30},
        },
    }


def make_run(
    name: str = "Plain training (ERM)",
    role: str = "before",
    red: float | None = 1.0,
    green: float | None = 0.125,
    *,
    disagreement: float | None = 0.75,
    **changes: Any,
) -> RunView:
    test = make_metrics(red, green)
    fields: dict[str, Any] = {
        "name": name,
        "method": "erm" if role == "before" else "ipg",
        "config": {"seed": 7, "learning_rate": 1e-3, "optimizer": {"name": "adam"}, "augment": False},
        "epochs": [
            {
                "epoch": epoch,
                "step": 10 * epoch,
                "seconds": 0.5 * epoch,
                "train": {"task_loss": 0.3},
                "validation": test,
                "test": {**test, "average": 0.1 * epoch},
                "pair_disagreement": disagreement,
                "train_pair_disagreement": 0.5,
            }
            for epoch in (1, 2, 3)
        ],
        "result": {
            "selection": "last",
            "selected_epoch": 3,
            "metrics": {**test, "pair_disagreement": disagreement},
            "seconds": 65.4 if role == "after" else 6.1,
        },
        "role": role,
        "pairs": None if disagreement is None else PairAnswers(200, round(200 * disagreement), 40),
    }
    return RunView(**{**fields, **changes})


def make_image(channels: int = 2, side: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (channels, side, side), generator=generator, dtype=torch.uint8)


def make_look(*runs: RunView, seed: int = 0) -> Look:
    images = [make_image(seed=seed), make_image(seed=seed).flip(0)]
    return Look("garment", images, {run.name: [torch.linspace(0, 1, 36).view(6, 6)] * 2 for run in runs})


def make_page(**changes: Any) -> PageData:
    before, after = make_run(), make_run("Guided (IPG)", "after", 0.98, 0.97, disagreement=0.01)
    fields: dict[str, Any] = {
        "title": "On clothes whose colour changed",
        "shortcut": "In training every garment is red.",
        "runs": [before, after],
        "pairs": [(make_image(seed=i), make_image(seed=i).flip(0), CLASSES[i % 2]) for i in range(4)],
        "pair_count": 40,
        "train_count": 12_000,
        "flips": [
            Flip(
                make_image(seed=i),
                make_image(seed=i).flip(0),
                "garment",
                {before.name: ("shoe", "garment"), after.name: ("garment", "garment")},
            )
            for i in range(3)
        ],
        "command": "ipg demo --seed 7",
        "looks": [make_look(before, after, seed=i) for i in range(2)],
        "environment": {"torch": "2.8.0", "Hardware": "CPU, 2 cores", "Commit": "0123abc"},
    }
    return PageData(**{**fields, **changes})


@pytest.fixture
def run() -> Callable[..., RunView]:
    """Makes a run."""
    return make_run


@pytest.fixture
def image() -> Callable[..., Tensor]:
    """Makes an image."""
    return make_image


@pytest.fixture
def page() -> Callable[..., PageData]:
    """Makes the data of a page."""
    return make_page


@pytest.fixture
def metrics() -> Callable[..., Mapping[str, Any]]:
    """Makes METRICS of two groups."""
    return make_metrics
