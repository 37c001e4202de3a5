"""Guidance in a LightningModule: its `training_step` stays as it is, and so does Lightning's automatic optimization.

An iteration makes two updates, and Lightning should count one, or `max_steps`, checkpoints and schedules would run at
twice the pace. So the correction, in `on_train_batch_start`, goes through the *raw* optimizer, which Lightning does not
watch; the task update is Lightning's own. The task gradient is rescaled in `on_before_optimizer_step`: Lightning has
accumulated and unscaled it by then, and clips it afterwards. So the module trains with any `accumulate_grad_batches`,
`gradient_clip_val` and `precision`, also "16-mixed". A checkpoint of Lightning's holds the states of guidance and
sampler, too; it is read before they are made.

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
        self.pairs = pairs
        self.correction: Any = None
        self.saved: dict[str, Any] | None = None

    def on_fit_start(self) -> None:
        """Make the guidance now that the parameters lie on their device and the optimizer is built."""
        raw_optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(raw_optimizer, torch.optim.Optimizer)  # not a list: there is one
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)  # in "16-mixed" there is one
        self.guide = ipg.Guidance(self.model, raw_optimizer, scaler=scaler)
        self.sampler = ipg.PairSampler(self.pairs.to(self.device), batch_size=20)
        if self.saved is not None:
            self.guide.load_state_dict(self.saved["guide"])
            self.sampler.load_state_dict(self.saved["sampler"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep which iteration comes next and with which pairs, beside the weights that Lightning keeps."""
        checkpoint["guided"] = {"guide": self.guide.state_dict(), "sampler": self.sampler.state_dict()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember it until `on_fit_start`."""
        self.saved = checkpoint["guided"]

    def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
        """Update 1, before the first batch of an iteration: by the raw optimizer, so it is not counted."""
        if self.correction is None:
            self.guide.optimizer.zero_grad()  # Lightning keeps the gradients of the last iteration until its backward
            with self.trainer.precision_plugin.forward_context():  # as Lightning runs `training_step`
                self.correction = self.guide.correct(self.sampler)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Rescale the task gradient, just before update 2, which is Lightning's."""
        report = self.guide.rescale(self.correction)
        self.correction = None
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
