"""Training loops written the way public benchmarks write theirs: what `loops.py` compares ours with.

A DataLoader over tensors or over PIL images that are turned into tensors one by one, Adam as it comes, loss and
accuracy asked of the device at every step. The guided loop is Algorithm 1 spelt out: the members of the pairs go
through the network one after the other, rationales are built, all their differences too, and Python decides by
numbers that it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ipg.models import ConvNet

__all__ = ["Pictures", "draw", "erm_step", "ipg_step"]


class Pictures(Dataset[tuple[Tensor, int]]):
    """PIL images with labels; an image becomes a tensor when it is asked for."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        """Take images (N, 2, H, W) of uint8."""
        self.images = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in images]  # mode LA
        self.labels: list[int] = labels.tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(np.array(self.images[index]))  # (H, W, 2)
        return pixels.permute(2, 0, 1).contiguous().float() / 255, self.labels[index]


def draw(data: Dataset[Any], *, batch: int, workers: int) -> Iterator[list[Tensor]]:
    """Shuffled full batches without end."""
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def erm_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor], device: torch.device
) -> tuple[float, float]:
    """One iteration of plain training; returns loss and accuracy."""
    images, labels = (column.to(device) for column in batch)
    logits = model(images)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item(), _share(logits.argmax(dim=1) == labels)


def ipg_step(
    model: ConvNet,
    optimizer: torch.optim.Optimizer,
    batch: list[Tensor],
    pairs: list[Tensor],
    device: torch.device,
    *,
    alpha: float,
    tau: float,
    margin: float,
    floor: float,
) -> tuple[float, float]:
    """One iteration of Algorithm 1; returns loss and accuracy."""
    first, second, pair_labels = (column.to(device) for column in pairs)
    one, first_logits = _rationales(model, first)
    two, second_logits = _rationales(model, second)
    align = (one - two).flatten(1).norm(dim=1).mean()
    different = (pair_labels[:, None] != pair_labels).float()  # (n, n)
    uniform = torch.zeros((), device=device)
    for rationales in (one, two):
        gaps = (rationales[:, None] - rationales).flatten(2).norm(dim=2)  # (n, n, D, K) -> (n, n)
        uniform = uniform + (F.relu(margin - gaps) * different).mean() / 2
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(align + uniform, parameters, allow_unused=True, materialize_grads=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient  # of the head's bias 0: it moves by its momentum
    correction = _norm(model)
    disagreement = _share(first_logits.argmax(dim=1) != second_logits.argmax(dim=1))
    optimizer.step()

    images, labels = (column.to(device) for column in batch)
    logits = model(images)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = _norm(model)
    if disagreement >= tau:
        scale = alpha * correction / norm if norm > 0 else 0.0
    else:
        scale = min(1.0, 2 * max(floor, correction) / norm)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
    optimizer.step()
    return loss.item(), _share(logits.argmax(dim=1) == labels)


def _rationales(model: ConvNet, images: Tensor) -> tuple[Tensor, Tensor]:
    features = model.body(images).mean(dim=(2, 3))  # (n, D)
    return features[:, :, None] * model.head.weight.T, model.head(features)  # (n, D, K), (n, K)


def _norm(model: ConvNet) -> float:
    squares = [parameter.grad.pow(2).sum() for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack(squares).sum().sqrt().item()


def _share(flags: Tensor) -> float:
    return flags.float().mean().item()
