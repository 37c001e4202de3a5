"""Iterations on a GPU as pretrained networks are guided: captured, in bf16, BatchNorm's statistics kept.

EPG, on MobileNetV2 alone, stands for the methods that differentiate gradients. *As written* is without the kernels for
such norms. The weights are fresh and the images noise: times do not depend on them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from unittest.mock import patch

import torch

from ipg.benchmarks.gpu import BATCH, KINDS, SECONDS, WARM_UP, noise, ours
from ipg.benchmarks.iterations import Block, per_step, steps_for
from ipg.benchmarks.measure import Measurement, compare, take_turns
from ipg.benchmarks.steps import Kind
from ipg.models import build_model
from ipg.models.frozen_norm import SWITCH

__all__ = ["CASES", "measure"]

OPTIONS = {"engine": "captured", "batch_norm": "eval"}
CASES = {"mobilenetv2_100": (*KINDS, Kind("epg", "epg")), "resnet50": KINDS}


def measure(device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    """Time an iteration of each kind with and without the kernel; nothing on a machine without a CUDA GPU."""
    if device.type == "cuda":
        for name, kinds in CASES.items():
            yield from _of_network(name, kinds, device, quick=quick)


def _of_network(name: str, kinds: Sequence[Kind], device: torch.device, *, quick: bool) -> Iterator[Measurement]:
    materials = noise(3, 64 if quick else 224)
    blocks: dict[str, Block] = {}
    written: dict[str, Block] = {}
    for kind in kinds:
        for found, remark, kernels in ((blocks, "", {}), (written, ", as written", {SWITCH: "0"})):
            network = build_model(name, channels=3, classes=2)
            with patch.dict(os.environ, kernels):
                found[f"{name} {kind.name}{remark}"] = ours(kind, network, materials, device, **OPTIONS)
    for block in (blocks | written).values():
        block(WARM_UP)
    work = {
        case: partial(per_step, block, 4 if quick else steps_for(block, device, seconds=SECONDS), device)
        for case, block in (blocks | written).items()
    }
    times = take_turns(work, 1 if quick else 4)
    ideals = {f"{name} {kind.name}": kind.ideal(BATCH) for kind in kinds if kind.method == "ipg"}
    plain = dict.fromkeys([case for case in blocks if not case.endswith(" erm")], f"{name} erm")
    yield from compare("pretrained", {case: times[case] for case in blocks}, unit="ms", baselines=plain, ideals=ideals)
    beside = compare("pretrained", times, unit="ms", baselines=dict(zip(blocks, written, strict=True)))
    yield from (found for found in beside if found.baseline is not None or found.case in written)
