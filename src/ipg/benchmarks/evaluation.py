"""Evaluation by group against the network alone on the same images in batches of 128, in images a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ipg.benchmarks.measure import Measurement, compare, take_turns, timed
from ipg.benchmarks.steps import SIZES
from ipg.data.load import load
from ipg.evaluation.groups import evaluate
from ipg.models import build_model

__all__ = ["measure"]

BATCH = 128


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Images a second of both, on each network."""
    for name, size in SIZES.items():
        count = 64 if quick else 6000 if device.type != "cpu" or name == "small_cnn" else 1024
        table = load("colored_fashion", size=size).part("test")
        table = table.take(torch.arange(count)).to(device)
        torch.manual_seed(0)
        model = build_model(name, channels=table.images.shape[1], classes=table.num_classes).to(device)
        ready = [part.float() / 255 for part in torch.split(table.images, BATCH)]
        cases: dict[str, Callable[[], object]] = {
            f"{name} evaluate": partial(evaluate, model, table),
            f"{name} forward alone": partial(_forward, model, ready),
        }
        for work in cases.values():
            work()  # warm up
        seconds = take_turns({case: partial(timed, work, device) for case, work in cases.items()}, 2 if quick else 9)
        rates = {case: [count / value for value in values] for case, values in seconds.items()}
        baselines = {f"{name} evaluate": f"{name} forward alone"}
        yield from compare("evaluation", rates, unit="images/s", baselines=baselines)


def _forward(model: nn.Module, parts: list[Tensor]) -> None:
    with torch.inference_mode():
        for part in parts:
            model(part)
