"""Guidance in a loop under Hugging Face Accelerate, with its gradient accumulation.

Four things to know:

- the guidance takes the *unwrapped* optimizer: Accelerate's wrapper skips `step` and `zero_grad` in the middle of an
  accumulation, and the correction must not be skipped;
- in an fp16 run the two share one GradScaler: pass `accelerator.scaler`, which is None in any other precision;
- correct once an iteration, on its first micro-batch, while no gradient has been accumulated;
- registered for checkpointing, guidance and sampler are kept and put back by `save_state` and `load_state`.

Run it with `python examples/accelerate_loop.py` (needs `pip install accelerate`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy import Toy, make_toy, show, small_cnn

import ipg


def train(toy: Toy, epochs: int, *, guided: bool) -> nn.Module:
    torch.manual_seed(0)  # the loader's order
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)  # drop cpu=True in your own code
    loader = DataLoader(TensorDataset(toy.x, toy.y), batch_size=16, shuffle=True)
    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    guide = ipg.Guidance(model, optimizer.optimizer, scaler=accelerator.scaler)
    pairs = ipg.PairSampler(toy.pairs.to(accelerator.device), batch_size=20)
    accelerator.register_for_checkpointing(guide, pairs)

    first_micro_batch = True
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                if guided and first_micro_batch:
                    correction = guide.correct(pairs)
                accelerator.backward(F.cross_entropy(model(x), y))
                if guided and accelerator.sync_gradients:  # the last micro-batch of the iteration
                    guide.rescale(correction)  # unscales too, under fp16
                optimizer.step()  # Accelerate skips both while it accumulates
                optimizer.zero_grad()
            first_micro_batch = accelerator.sync_gradients
    bare: nn.Module = accelerator.unwrap_model(model)
    return bare


def main() -> None:
    toy = make_toy()
    show("plain", train(toy, epochs=6, guided=False), toy)
    show("guided", train(toy, epochs=6, guided=True), toy)


if __name__ == "__main__":
    main()
