"""Guidance in a LightningModule, by manual optimization.

Two updates an iteration, but Lightning should count one, or `max_steps`, checkpoints and loggers would run at twice
the pace. So the correction goes through the *raw* optimizer, which Lightning does not watch, and the task update
through Lightning's own wrapper around it, which adds one to `trainer.global_step`. The task gradient is rescaled in
`on_before_optimizer_step`, when Lightning has unscaled it: so the module trains in any `precision`, also "16-mixed".

Run it with `python examples/lightning_module.py` (needs `pip install lightning`).
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from toy import Toy, make_toy, show, small_cnn

import ipg


class Plain(lightning.LightningModule):
    """An ordinary module: Lightning runs backward and the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small_cnn()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer, for the guided module too."""
        return torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def training_step(self, batch: Any, batch_index: int) -> Tensor | None:
        """Return the loss; Lightning does the rest."""
        x, y = batch
        return F.cross_entropy(self.model(x), y)


class Guided(Plain):
    """The same module, guided by pairs."""

    def __init__(self, pairs: ipg.Pairs) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.pairs = pairs

    def on_fit_start(self) -> None:
        """Make the guidance now that the parameters lie on their device and the optimizer is built."""
        raw_optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(raw_optimizer, torch.optim.Optimizer)  # not a list: there is one
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)  # in "16-mixed" there is one
        self.guide = ipg.Guidance(self.model, raw_optimizer, scaler=scaler)
        self.sampler = ipg.PairSampler(self.pairs.to(self.device), batch_size=20)

    def training_step(self, batch: Any, batch_index: int) -> None:
        """Make both updates; nothing is returned, so Lightning makes none of its own."""
        x, y = batch
        optimizer = self.optimizers()
        assert isinstance(optimizer, torch.optim.Optimizer)
        self.correction = self.guide.correct(self.sampler)  # update 1, by the raw optimizer: not counted
        loss = F.cross_entropy(self.model(x), y)
        self.manual_backward(loss)
        optimizer.step()  # update 2, by Lightning's wrapper: counted
        optimizer.zero_grad()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Rescale the task gradient, just before update 2."""
        report = self.guide.rescale(self.correction)
        self.log("disagreement", report.disagreement)  # tensors: nothing waits for the device


def fit(module: lightning.LightningModule, toy: Toy, epochs: int) -> lightning.Trainer:
    loader = DataLoader(TensorDataset(toy.x, toy.y), batch_size=64, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",  # "auto" in your own code
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return trainer


def main() -> None:
    toy = make_toy()
    lightning.seed_everything(0, verbose=False)
    plain, guided = Plain(), Guided(toy.pairs)
    fit(plain, toy, epochs=6)
    trainer = fit(guided, toy, epochs=6)
    show("plain", plain.model, toy)
    show("guided", guided.model, toy)
    print(f"global_step {trainer.global_step}, iterations {guided.guide.iteration}")


if __name__ == "__main__":
    main()
