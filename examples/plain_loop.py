"""Guidance in your own training loop: three lines.

The two functions below are the same loop. What `guided` adds to `plain` is marked `# +`, what it replaces `# -`:

      optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    + guide = ipg.Guidance(model, optimizer)
    + pairs = ipg.PairSampler(toy.pairs, batch_size=20)
      for x, y in batches(toy, epochs):
    -     loss = F.cross_entropy(model(x), y)
    -     optimizer.zero_grad()
    -     loss.backward()
    -     optimizer.step()
    +     guide.step(lambda: F.cross_entropy(model(x), y), pairs)

Run it with `python examples/plain_loop.py`.
"""

# mypy: allow-untyped-calls
# ruff: noqa: B023  (the lambda runs at once, inside the iteration that made it)

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from toy import Toy, batches, make_toy, show, small_cnn

import ipg


def plain(toy: Toy, epochs: int) -> nn.Module:
    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in batches(toy, epochs):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def guided(toy: Toy, epochs: int) -> nn.Module:
    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    guide = ipg.Guidance(model, optimizer)  # any optimizer that is already built
    pairs = ipg.PairSampler(toy.pairs, batch_size=20)  # endless and seeded
    for x, y in batches(toy, epochs):
        # The loss is a function because it has to be computed *after* the correction has moved the parameters.
        # Both updates happen in here: no zero_grad, no backward, no optimizer.step of your own.
        guide.step(lambda: F.cross_entropy(model(x), y), pairs)
    guide.check()  # would raise if a gradient had been NaN or the features had collapsed
    return model


def main() -> None:
    toy = make_toy()
    show("plain", plain(toy, epochs=6), toy)
    show("guided", guided(toy, epochs=6), toy)


if __name__ == "__main__":
    main()
