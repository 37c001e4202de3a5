"""Guidance for loops that own their backward: here, gradients accumulated over micro-batches.

`guide.step` is made of two calls. Take them apart when something of yours stands between them: accumulation, gradient
clipping, a scheduler, a framework's own backward. One iteration is then

1. `guide.correct(pairs)`, before the first backward: the corrective update;
2. your backward passes, as many as you like;
3. `guide.rescale(correction)`: the accumulated task gradient gets its length from the invariance condition;
4. your `optimizer.step()`: the task update.

Run it with `python examples/own_backward.py`.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from toy import Toy, batches, make_toy, show, small_cnn

import ipg

MICRO_BATCHES = 4


def train(toy: Toy, epochs: int, *, guided: bool) -> nn.Module:
    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    task_batches = batches(toy, epochs)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(task_batches))
    guide = ipg.Guidance(model, optimizer)
    pairs = ipg.PairSampler(toy.pairs, batch_size=20)

    for x, y in task_batches:
        if guided:
            correction = guide.correct(pairs)  # refuses to run once a gradient has been accumulated
        for micro_x, micro_y in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
            loss = F.cross_entropy(model(micro_x), micro_y) / MICRO_BATCHES
            loss.backward()
        if guided:
            guide.rescale(correction)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)  # clip what is really applied: after rescale
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()  # once an iteration, though the optimizer made two updates
    return model


def main() -> None:
    toy = make_toy()
    show("plain", train(toy, epochs=6, guided=False), toy)
    show("guided", train(toy, epochs=6, guided=True), toy)


if __name__ == "__main__":
    main()
