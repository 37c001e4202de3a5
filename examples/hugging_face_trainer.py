"""Guidance in the Trainer of Hugging Face Transformers, with its gradient accumulation.

Four things to know:

- the correction comes before the first micro-batch of an iteration, in `training_step`; the task gradient is rescaled
  just before the optimizer steps, which a callback hears of as `on_pre_optimizer_step`;
- the guidance takes the *unwrapped* optimizer, whose updates the Trainer does not watch: so an iteration counts as one
  step for `max_steps`, schedules, logs and checkpoints;
- it shares the Trainer's GradScaler, which is None in any precision but fp16;
- the Trainer clips (`max_grad_norm`) before that callback: while the condition is violated (with `tau=0` always),
  rescaling gives the gradient its length whatever the clip made of it.

Run it with `python examples/hugging_face_trainer.py` (needs `pip install transformers accelerate`).
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from toy import Toy, make_toy, show, small_cnn
from transformers import Trainer, TrainerCallback, TrainingArguments

import ipg


class Classifier(nn.Module):
    """Takes and gives what image classifiers of transformers do; any of those will do."""

    def __init__(self) -> None:
        super().__init__()
        *layers, head = small_cnn()
        self.features, self.classifier = nn.Sequential(*layers), head

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and their loss where there are labels."""
        logits = self.classifier(self.features(pixel_values))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Images(Dataset[dict[str, Tensor]]):
    """Images by the names of the network's arguments."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    def __len__(self) -> int:
        return len(self.toy.y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.toy.x[index], "labels": self.toy.y[index]}


class GuidedTrainer(Trainer):
    """A Trainer that is guided by pairs; give it `pairs=` beside its other arguments."""

    def __init__(self, *args: Any, pairs: ipg.Pairs, **options: Any) -> None:
        super().__init__(*args, **options)
        part = (self.args.process_index, self.args.world_size)  # of several processes each draws its own shard
        self.sampler = ipg.PairSampler(pairs.to(self.args.device), batch_size=20, part=part)
        self.guide: ipg.Guidance | None = None
        self.correction: Any = None
        self.add_callback(Rescale(self))

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Correct before the first micro-batch of an iteration."""
        if self.guide is None:  # `model` is as it trains, perhaps inside DistributedDataParallel
            wrapper: Any = self.optimizer
            self.guide = ipg.Guidance(model, wrapper.optimizer, scaler=self.accelerator.scaler)
        if self.correction is None:
            self.correction = self.guide.correct(self.sampler)
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss


class Rescale(TrainerCallback):
    """Gives the task gradient its length after the last micro-batch of an iteration."""

    def __init__(self, trainer: GuidedTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **told: Any) -> None:
        """Rescale, and ask for the next correction."""
        assert self.trainer.guide is not None
        self.trainer.guide.rescale(self.trainer.correction)
        self.trainer.correction = None


def train(toy: Toy, epochs: int, *, guided: bool) -> nn.Module:
    model = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=4,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            use_cpu=True,  # drop it in your own code
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data = Images(toy)
        trainer: Any = (
            GuidedTrainer(model, arguments, train_dataset=data, pairs=toy.pairs)
            if guided
            else Trainer(model, arguments, train_dataset=data)
        )
        trainer.train()
    if guided:
        print(f"global_step {trainer.state.global_step}, iterations {trainer.guide.iteration}")
    return nn.Sequential(model.features, model.classifier)


def main() -> None:
    toy = make_toy()
    show("plain", train(toy, epochs=6, guided=False), toy)
    show("guided", train(toy, epochs=6, guided=True), toy)


if __name__ == "__main__":
    main()
