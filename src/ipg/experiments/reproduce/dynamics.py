"""Training in full batch, every epoch one iteration over all images and all pairs: what the losses do on the way.

The paper's figure of the training dynamics (its appendix on ColoredMNIST): Adam, 1,500 iterations, all pairs in each.
The task gradient of all images is accumulated exactly, in pieces of `batch` images that count by their class weights,
so the size of a piece changes nothing but memory. That holds for networks whose answer to an image depends on it alone:
a network with BatchNorm is refused. So is what no such run does, for its row would state it all the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ipg.config import RunConfig
from ipg.evaluation.groups import evaluate
from ipg.experiments.ablations import gather_trial
from ipg.experiments.attempt import Tell
from ipg.experiments.study import ELSEWHERE, Trial
from ipg.guidance import CollapseError, Guidance, NonFiniteError
from ipg.methods.optimizers import load_optimizer
from ipg.seeds import derive_seed
from ipg.training.checkpoint import load_checkpoint, save_checkpoint
from ipg.training.device import numerics, resolve_device, resolve_precision, seed_generators
from ipg.training.materials import Materials
from ipg.training.optimization import class_weights
from ipg.training.provenance import provenance

__all__ = ["CURVES", "FullBatch", "run_dynamics"]

CURVES = ("task_loss", "corrective_loss", "disagreement")
FIXED: Mapping[str, Any] = {
    "method": "ipg", "optimizer": "adam", "schedule": "constant", "warmup": 0, "weight_decay": 0.0, "steps": None,
    "crop": 1.0, "flip": False, "jitter": 0.0, "restarts": 0, "selection": "last", "decision": "argmax",
}  # fmt: skip
"""Settings of which a run in full batch knows one value."""
PRECISIONS = ("fp32", "tf32")
"""Those that it computes in; the losses of half precision would be others."""
SAVE_SECONDS = 30.0


class FullBatch:
    """A run in full batch: the network, its guidance, and what was measured so far."""

    def __init__(self, config: RunConfig, materials: Materials, device: torch.device) -> None:
        config = config.suited().with_changes(precision=resolve_precision(config.precision, device))
        placed = materials.to(device)
        if placed.pairs is None:
            raise ValueError("a run in full batch is guided by pairs and there are none: give pairs a number above 0")
        _check(config, pairs=len(placed.pairs))
        self.config, self.model, self.pairs = config, placed.model, placed.pairs
        if any(isinstance(module, _BatchNorm) for module in self.model.modules()):
            raise ValueError("a network with BatchNorm cannot be trained in pieces of a batch; take mnist_cnn")
        self.table = placed.table.part("train")
        weight = class_weights(self.table) if config.class_weighted else torch.ones(self.table.num_classes)
        self.weight = weight.to(device)
        self.total = self.weight[self.table.label].sum()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        names = ("alpha", "tau", "margin", "every", "floor", "distance", "strict")
        self.guide = Guidance(self.model, self.optimizer, **{name: getattr(config, name) for name in names})
        self.curves: dict[str, list[float]] = {name: [] for name in CURVES}
        self.seconds = 0.0

    @property
    def epoch(self) -> int:
        """How many are done."""
        return len(self.curves["task_loss"])

    def step(self) -> None:
        """One epoch: the correction from all pairs, then the task update from all images.

        Raises:
            CollapseError: all images of the pairs have stood on one point for long; the curves end before.
            NonFiniteError: a gradient is no longer a number; the curves end before.
        """
        self.optimizer.zero_grad()
        correction = self.guide.correct(self.pairs.batch(slice(None)))
        loss = self._accumulate()
        report = self.guide.rescale(correction, loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.guide.check()
        told = report.numbers()
        values = (told["task_loss"], told["alignment"] + told["uniformity"], told["disagreement"])
        for name, value in zip(CURVES, values, strict=True):
            self.curves[name].append(round(value, 6))

    def _accumulate(self) -> Tensor:
        """Leave the gradient of the mean loss of all images, weighted by class, and return that loss."""
        loss = torch.zeros((), device=self.total.device)
        for start in range(0, len(self.table), self.config.batch):
            rows = slice(start, start + self.config.batch)
            logits = self.model(self.table.images[rows].float() / 255)
            part = F.cross_entropy(logits, self.table.label[rows], weight=self.weight, reduction="sum") / self.total
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "guide": self.guide.state_dict(),
            "curves": self.curves,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.guide.load_state_dict(state["guide"])
        self.curves, self.seconds = state["curves"], state["seconds"]


def _check(config: RunConfig, *, pairs: int) -> None:
    """ValueError where `config`, which its row states, is not what a run in full batch with so many pairs does."""
    known = {**FIXED, "pair_batch": pairs}
    others = [f"{name}={getattr(config, name)!r}" for name, value in known.items() if getattr(config, name) != value]
    others += [f"precision={config.precision!r}"] if config.precision not in PRECISIONS else []
    if others:
        meant = ", ".join(f"{name}={value!r}" for name, value in known.items())
        meant += f", precision={' or '.join(map(repr, PRECISIONS))}"
        raise ValueError(f"no run in full batch has {', '.join(others)}; expected {meant}")


def run_dynamics(
    trial: Trial, *, metrics_split: str = "test", folder: Path | None = None, tell: Tell | None = None
) -> dict[str, Any]:
    """Run one trial in full batch; its row has the losses of every epoch. A run found in `folder` goes on.

    A run that collapses, or whose loss is no longer a number, has a row, too: that of the network as it stands, with
    the losses until then.
    """
    config = trial.config
    device = resolve_device(config.device)
    materials = gather_trial(config)
    seed_generators(derive_seed(config.seed, "training"), device)
    with numerics(config, device):
        run = FullBatch(config, materials, device)
        collapse = {}
        try:
            for share in _train(run, folder):
                if tell is not None:
                    tell(share)
        except (CollapseError, NonFiniteError) as error:
            collapse = {"collapse": str(error)}
        part = materials.table.part(metrics_split).to(device)
        metrics = evaluate(run.model.eval(), part)
    run.guide.close()
    settled = {name: value for name, value in run.config.flat().items() if name not in ("seed", *ELSEWHERE)}
    settled["engine"] = "eager"  # whatever others of the same command are carried out by
    return {
        **trial.identity,
        "config": settled,
        "split": metrics_split,
        "kind": "dynamics",
        **collapse,
        "metrics": {**metrics, "task_loss": min(run.curves["task_loss"], default=None)},
        "curves": run.curves,
        "seconds": round(run.seconds, 3),
        **provenance(device),
    }


def _train(run: FullBatch, folder: Path | None) -> Iterator[float]:
    """Train to the end, saving now and then; yields which share is done, at first that of an earlier run."""
    file = None if folder is None else folder / "full_batch.safetensors"
    if file is not None and file.exists():
        run.load_state_dict(load_checkpoint(file))
    run.model.train()
    yield run.epoch / run.config.epochs
    clock = saved = time.perf_counter()
    try:
        while run.epoch < run.config.epochs:
            run.step()
            now = time.perf_counter()
            run.seconds, clock = run.seconds + now - clock, now
            if file is not None and now - saved >= SAVE_SECONDS:
                saved = now
                save_checkpoint(file, run.state_dict())
            yield run.epoch / run.config.epochs
    except KeyboardInterrupt:
        if file is not None:
            save_checkpoint(file, run.state_dict())
        raise
