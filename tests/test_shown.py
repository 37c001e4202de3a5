"""What a notebook shows of objects: a line, not all their numbers."""

from __future__ import annotations

import torch
from torch import nn

import ipg
from ipg.data.table import ImageTable
from ipg.notebook import fit


def table(classes: int = 2) -> ImageTable:
    split = torch.tensor([0] * 8 + [1] * 4 + [2] * 4)
    label = torch.arange(16) % 2
    images = (label * 200).to(torch.uint8).view(16, 1, 1, 1).expand(16, 3, 4, 4).contiguous()
    zeros = torch.zeros_like(label)
    return ImageTable(
        name="toy", images=images, label=label, attribute=zeros, split=split, environment=zeros, content=label,
        splits=("train", "validation", "test"), classes=tuple(f"c{k}" for k in range(classes)), attributes=("all",),
    )  # fmt: skip


def test_pairs_and_samplers() -> None:
    pairs = ipg.Pairs(torch.zeros(1_200, 3, 4, 4), torch.ones(1_200, 3, 4, 4), torch.zeros(1_200).long())
    assert repr(pairs) == "Pairs(1,200 pairs of (3, 4, 4), float32 on cpu)"
    assert repr(ipg.PairSampler(pairs, batch_size=32)) == f"PairSampler({pairs!r}, batch_size=32)"
    one = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    kept = ipg.PairSet(one, one, torch.zeros(1).long(), torch.zeros(1, 2).long(), split="train", builder="own")
    assert repr(kept) == "PairSet(1 pair of (3, 4, 4), uint8 on cpu, own, of train)"


def test_guidance() -> None:
    model = nn.Linear(4, 2)
    guide = ipg.Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), margin="0.5x", every=4)
    assert repr(guide) == (
        "Guidance(Linear, SGD, margin='0.5x', alpha=0.1, tau=0.0, every=4, batch_norm='train', iteration=0)"
    )


def test_tables_name_few_classes_and_count_many() -> None:
    assert repr(table()) == "ImageTable(toy: 8 train, 4 validation, 4 test images of (3, 4, 4); classes c0, c1)"
    assert repr(table(7)).endswith("; 7 classes)")


def test_a_run_tells_its_figures() -> None:
    run = fit(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), table(), method="erm", epochs=1, batch=4, device="cpu")
    metrics = run.result["metrics"]
    told = f"average {100 * metrics['average']:.1f} %, worst group {100 * metrics['worst_group']:.1f} %"
    assert repr(run) == f"Run(erm on toy, seed 0, {told})"
