"""The corrective loss and its gradient at the head: scaled features against rationales that are built.

The naive form makes a D×K matrix an image and measures distances between those; `ipg.rationale` measures the same
distances between D numbers an image. Everything after the embedding is the same code.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ipg.benchmarks.measure import Measurement, compare, take_turns, timed
from ipg.rationale import alignment, pairwise_distances, scaled_features, uniformity

__all__ = ["measure"]

Embed = Callable[[Tensor, Tensor], Tensor]


def naive(features: Tensor, weight: Tensor) -> Tensor:
    """Rationales, built and laid out flat, (B, D·K)."""
    return (features.unsqueeze(2) * weight.T).flatten(1)


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time and peak memory of both forms, by number of classes."""
    images, width = (16, 32) if quick else (128, 2048)
    both, alone = ((2, 8), 64) if quick else ((2, 100, 1000), 21_000)
    for classes in (*both, alone):
        inputs = _inputs(images, width, classes, device)
        size = f"B{images} D{width} K{classes}"
        forms: dict[str, Embed] = {f"{size} scaled features": scaled_features}
        if classes in both:
            forms[f"{size} naive"] = naive
            _check(*inputs)
        baselines = dict.fromkeys(list(forms)[:1], f"{size} naive") if classes in both else {}
        work = {name: partial(_loss_and_gradients, embed, *inputs) for name, embed in forms.items()}
        memory = {name: [_peak(one, device) / 2**20] for name, one in work.items()}  # also the warm-up
        rounds = 2 if quick else 3 if classes == max(both) else 5 if classes >= 100 else 11
        seconds = take_turns({name: partial(timed, one, device) for name, one in work.items()}, rounds)
        times = {name: [1e3 * value for value in values] for name, values in seconds.items()}
        yield from compare("distances", times, unit="ms", baselines=baselines)
        yield from compare("distances memory", memory, unit="MiB", baselines=baselines)


def _inputs(images: int, width: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(images, width, generator=generator).to(device).requires_grad_()
    weight = (torch.randn(classes, width, generator=generator) / math.sqrt(width)).to(device).requires_grad_()
    return features, weight, (torch.arange(images // 2) % 2).to(device)


def _loss_and_gradients(embed: Embed, features: Tensor, weight: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    """L_A + L_U and its gradients; the first half of the images is paired with the second."""
    n = len(label)
    embedded = embed(features, weight)
    different = label[:, None] != label
    distances = pairwise_distances(torch.stack([embedded[:n], embedded[n:]]))
    margin = 2 * math.sqrt(2 * len(weight))  # twice the usual distance: every hinge is open
    loss = alignment(embedded[:n], embedded[n:]) + uniformity(distances, different, margin)
    return (loss.detach(), *torch.autograd.grad(loss, (features, weight)))


def _check(features: Tensor, weight: Tensor, label: Tensor) -> None:
    """Two forms are compared only where they compute the same."""
    few = torch.cat([features[:4], features[len(label) : len(label) + 4]]).detach().requires_grad_()
    ours = _loss_and_gradients(scaled_features, few, weight, label[:4])
    theirs = _loss_and_gradients(naive, few, weight, label[:4])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def _peak(work: Callable[[], object], device: torch.device) -> float:
    """Bytes that `work` has allocated at its height, inputs not counted."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        return math.nan
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler says hello and good-bye otherwise
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    held = height = 0
    for _, change in changes:
        held += change
        height = max(height, held)
    return height
