"""The one training loop: every method, every data set, resumable at every step.

    for each epoch:
        for each batch:        set the rate, draw pairs when due, let the method step
        evaluate, keep the epoch if the selection rule says so, save

The state after a step is a function of the configuration and the step alone: the order of an epoch comes from the
seed, everything else that is random has its state in the checkpoint. So a killed run ends with the same bits, on
a CPU; on a GPU only deterministic kernels can promise it.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ipg.collectives import GlobalCrossEntropy
from ipg.config import RunConfig
from ipg.data.augment import Augmentation
from ipg.data.batches import Batches
from ipg.data.table import ImageTable
from ipg.evaluation.batch_norm import batch_norm_gap, keep_statistics
from ipg.evaluation.decision import decide, movable_head, moved
from ipg.evaluation.groups import metrics
from ipg.evaluation.pairs import pair_disagreement
from ipg.evaluation.selection import select
from ipg.guidance import CollapseError, NonFiniteError
from ipg.methods import Method, Setup, method_class
from ipg.methods.optimizers import load_optimizer
from ipg.methods.options import parse_options
from ipg.pairs.pairset import PairSampler
from ipg.seeds import derive_seed
from ipg.training.capture import CapturedStep
from ipg.training.device import (
    autocast_dtype,
    numerics,
    own_randomness,
    random_state,
    resolve_device,
    seed_generators,
    set_random_state,
)
from ipg.training.distributed import Team
from ipg.training.engine import compile_model, compiling, lay_out, resolve
from ipg.training.folder import FIRST_STAGE, RunFolder
from ipg.training.interrupt import Interrupted, StopRequest, stop_on_signals
from ipg.training.listeners import FirstStage, Listener
from ipg.training.materials import Materials
from ipg.training.memory import OutOfMemoryError, fitting_batch
from ipg.training.optimization import class_weights, learning_rate, make_optimizer, set_rate
from ipg.training.provenance import provenance
from ipg.training.start import network_name
from ipg.training.stepping import EagerStep, Means, PairFeed

__all__ = ["Outcome", "Training", "settled", "train"]

_NO_MATTER = ("device", "data_path", "engine", "resident")
"""Settings that may change when a run is taken up again."""
LOOK_SECONDS = 0.5
"""How often the device is asked how it goes."""
SAVE_SECONDS = 60.0
"""How often a checkpoint is written inside an epoch; one is written at the end of each anyway."""


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    model: nn.Module
    """The network with the weights of the kept epoch."""
    rows: Sequence[dict[str, Any]]
    """A row an epoch, as in `metrics.jsonl`."""
    result: dict[str, Any]
    """What `result.json` holds."""


def train(
    config: RunConfig,
    materials: Materials,
    *,
    folder: Path | None = None,
    listeners: Sequence[Listener] = (),
    evaluate_on: Sequence[str] | None = None,
) -> Outcome:
    """Train as `config` says on `materials`.

    Args:
        config: what to do.
        materials: data, pairs and network to do it with.
        folder: where the run lives. A run found there goes on where it stopped; a finished one is read back.
        listeners: who is told.
        evaluate_on: splits to evaluate after each epoch; all but `train` where not given.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the state is saved.
        NonFiniteError, CollapseError: training has gone wrong; the message names the remedies.
        OutOfMemoryError: a batch does not fit on the device; the message says which one would.
        ProcessLostError: of several processes that train together, another is gone.
    """
    team = Team()
    device = team.device(resolve_device(config.device))
    config = resolve(config, device, processes=team.size)
    with ExitStack() as stack:
        if config.engine == "compiled":
            stack.enter_context(compiling())
        stack.enter_context(team.together())
        stack.enter_context(own_randomness(device))
        stack.enter_context(numerics(config, device, iterations=_iterations(config, materials.table)))
        identity, origin = _identity(config, materials, device)
        team.check_same("settings or data", identity)
        listeners = listeners if team.leads else ()
        first = _first_stage(config, materials, folder, listeners)
        placed = materials.to(device, resident=config.resident)
        run = Training(config, placed, device, listeners, evaluate_on, team, first)  # before the folder: may refuse
        stack.callback(run.method.close)
        if folder is not None:
            home = run.home = RunFolder(folder)
            team.first(lambda: stack.enter_context(home.claim(identity, origin)))
            if (found := team.first(home.finished)) is not None:
                return run.read_back(*found)
        return run.go(stack.enter_context(stop_on_signals()))


def _first_stage(
    config: RunConfig, materials: Materials, folder: Path | None, listeners: Sequence[Listener]
) -> Outcome | None:
    """The run that comes before, trained in a folder inside the run's own; None where there is none."""
    before = method_class(config.method).first_stage(config)
    if before is None:
        return None
    before = before.with_changes(decision="argmax")
    own = replace(materials, model=copy.deepcopy(materials.model), pairs=None, held_out=None)
    place = None if folder is None else folder / FIRST_STAGE
    return train(before, own, folder=place, listeners=[FirstStage(one) for one in listeners], evaluate_on=())


def _identity(config: RunConfig, materials: Materials, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes a run this run and no other, and where it comes from."""
    settings = {key: value for key, value in settled(config).items() if key not in _NO_MATTER}
    pairs, held_out, masks, table = materials.pairs, materials.held_out, materials.masks, materials.table
    origin = {
        **provenance(device),
        "data_path": config.data_path,
        "named": materials.named,
        "network": network_name(config, materials.model),
        "classes": list(table.classes),
        "shape": list(table.images.shape[1:]),
        "pairs": 0 if pairs is None else len(pairs),
        "held_out_pairs": 0 if held_out is None else len(held_out),
        **({} if masks is None else {"masks": int((masks.amax(dim=(1, 2, 3)) > 0).sum())}),
    }
    return {"config": settings, "data": materials.fingerprints()}, {"origin": origin}


def settled(config: RunConfig) -> dict[str, Any]:
    """The flat configuration with all of the method's own options, each of its type."""
    return config.flat() | asdict(parse_options(method_class(config.method), config.options))


@dataclass
class _Progress:
    """Where a run is; part of every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Weights of the epoch that the selection rule keeps."""


class Training:
    """The parts of a run, put together once."""

    def __init__(
        self,
        config: RunConfig,
        materials: Materials,
        device: torch.device,
        listeners: Sequence[Listener],
        evaluate_on: Sequence[str] | None,
        team: Team,
        first: Outcome | None = None,
    ) -> None:
        self.config, self.device, self.listeners, self.team = config, device, listeners, team
        self.home: RunFolder | None = None
        kind = method_class(config.method)
        table = materials.table
        train_table = table.part("train")
        if evaluate_on is None:
            evaluate_on = [split for split in table.splits if split != "train"]
        elif "train" in evaluate_on:
            raise ValueError("evaluate_on names the train split, whose images are not evaluated")
        self.parts = {split: table.part(split) for split in evaluate_on}
        self.validation = table.part("validation") if "validation" in table.splits else None
        if self.validation is not None and len(self.validation) == 0:
            self.validation = None
        self.pairs, self.held_out = materials.pairs, materials.held_out
        self._check_selection()
        self.autocast = autocast_dtype(config)
        self.model = lay_out(materials.model, config, device)
        self._check_decision()
        self.optimizer = make_optimizer(self.model, config, device)
        compile = config.engine == "compiled"
        views = Augmentation(config.crop, config.flip)
        options = parse_options(kind, config.options)
        self._earlier = 0.0 if first is None else float(first.result["seconds"])
        if first is not None:
            sampling = kind.learn(first.model, train_table, options, autocast=self.autocast)
        else:
            sampling = kind.sampling(train_table, options, seed=derive_seed(config.seed, "sampling"))
        masks = materials.masks if kind.needs & {"masks", "attention"} else None
        self.batches = Batches(
            train_table,
            config.batch,
            seed=config.seed,
            sampling=sampling,
            augmentation=views,
            share=team.rows,
            compile=compile,
            masks=masks,
            steps=config.steps,
        )
        self.total = config.epochs * len(self.batches)
        sampler = None
        if "pairs" in kind.needs and self.pairs is not None and len(self.pairs):
            seed, part = derive_seed(config.seed, "pair batches"), (team.index, team.size)
            sampler = PairSampler(self.pairs, config.pair_batch, seed=seed, part=part)
        feed = PairFeed(sampler, augmentation=views, compile=compile) if sampler is not None else None
        criterion = GlobalCrossEntropy(class_weights(train_table) if config.class_weighted else None)
        self.fast = compile_model(self.model, config)
        replica = team.replica(self.fast, device, batch_norm=config.batch_norm)
        loss = torch.compile(criterion.to(device), dynamic=False) if compile else criterion.to(device)
        setup = Setup(
            replica,
            self.optimizer,
            loss,
            config,
            feed,
            self.autocast,
            table=train_table,
            make_optimizer=lambda network: make_optimizer(network, config, device),
            validation=self.validation,
            pair_set=self.pairs,
            masks=masks,
        )
        self.method: Method = kind(setup)
        self.sampler = sampler
        self.means = Means(compile=compile)
        stepper = EagerStep if config.engine == "eager" else CapturedStep
        self.step: EagerStep = stepper(self.method, self.batches, feed, self.means)
        self.progress = _Progress()
        self._clock = self._last_look = self._last_save = time.perf_counter()

    def _check_selection(self) -> None:
        """A rule that had nothing to measure would keep the first epoch, whatever it is worth."""
        rule = self.config.selection
        if rule != "last" and not len(self.parts.get("validation", ())):
            raise ValueError(f"selection={rule!r} needs validation images and there are none; use selection='last'")
        if rule == "pairs" and self.held_out is None:
            raise ValueError("selection='pairs' needs held-out pairs and there are none; set held_out_pairs above 0")

    def _check_decision(self) -> None:
        """Before training rather than after its first epoch."""
        if (rule := self.config.decision) == "argmax":
            return
        if self.validation is None:
            raise ValueError(f"decision={rule!r} needs validation images and there are none; use decision='argmax'")
        movable_head(self.model)

    # -- the loop ------------------------------------------------------------------------------------------------

    def go(self, request: StopRequest) -> Outcome:
        """Train from where the run's folder stopped, or from the beginning."""
        self._seed()
        self._restore()
        home = self.home if self.team.leads else None
        if home is not None:
            home.go_on()
        try:
            return self._go(request)
        except (CollapseError, NonFiniteError) as error:
            if home is not None:
                home.fail(error, step=self.progress.step)
            raise

    def _go(self, request: StopRequest) -> Outcome:
        for listener in self.listeners:
            listener.started(self.config, step=self.progress.step, total=self.total)
        self._clock = self._last_look = self._last_save = time.perf_counter()
        self.model.train()
        if self.config.batch_norm == "eval":
            keep_statistics(self.model)
        while self.progress.step < self.total:
            epoch, start = divmod(self.progress.step, len(self.batches))
            for rows in self.batches.rows(epoch, start=start):
                set_rate(self.optimizer, learning_rate(self.progress.step, self.total, self.config))
                self._step(rows)
                self.progress.step += 1
                self._between_steps(request)
            self._end_epoch(epoch + 1)
            if any(self.team.agree(request.made)) and self.progress.step < self.total:
                self._stop()
        if self.validation is not None and self.method.refits and len(self.progress.rows) == self.config.epochs:
            self._refit(self.validation)
        return self._finish()

    def _step(self, rows: Tensor) -> None:
        """One iteration; where the device has not enough memory for it, find out how much of the batch would fit."""
        with suppress(torch.OutOfMemoryError):  # inside, the error would hold on to all that the step has made
            self.step(rows)
            return
        raise OutOfMemoryError(
            batch=self.config.batch,
            pair_batch=self.config.pair_batch if self.sampler is not None else None,
            fits=fitting_batch(self.step, rows) if self.team.size == 1 else None,
            kept=self.home is not None and self.home.checkpoint.exists(),
        )

    def _refit(self, validation: ImageTable) -> None:
        """Let the method change the kept network; one more row tells what it is worth, and is the one that is kept."""
        self.model.load_state_dict(self.progress.kept)
        self.method.refit(self.model, validation)
        self._end_epoch(self.config.epochs + 1)

    def _selected(self) -> int:
        """The row whose network is kept: the rule's choice, or the one after a refit."""
        rows = self.progress.rows
        return len(rows) - 1 if len(rows) > self.config.epochs else select(self.config.selection, rows)

    def _between_steps(self, request: StopRequest) -> None:
        now = time.perf_counter()
        look, save, stop = self.team.agree(
            now - self._last_look >= LOOK_SECONDS,
            now - self._last_save >= SAVE_SECONDS,
            request.made,
            step=self.progress.step,
        )
        if look:
            self._last_look = now
            self._look()
        if self.progress.step % len(self.batches) == 0:
            return  # the epoch's own checkpoint follows at once
        if save or stop:
            self._save()
        if stop:
            self._stop()

    def _stop(self) -> NoReturn:
        raise Interrupted(f"stopped after {self.progress.step} of {self.total} iterations")

    def _look(self) -> dict[str, float]:
        """Ask the device how it goes, stop if it goes wrong, tell the listeners."""
        self.means.average(self.team.peers)
        means = self.means.numbers()
        self.method.check()
        if not math.isfinite(means.get("task_loss", 0.0)):
            raise NonFiniteError(
                f"the loss is NaN or infinite by iteration {self.progress.step}. Likely causes: a NaN in the images, "
                f"or a learning rate that is too high ({self.config.learning_rate:g})."
            )
        rate = learning_rate(self.progress.step - 1, self.total, self.config)
        for listener in self.listeners:
            listener.progress(self.progress.step, means | {"learning_rate": rate})
        return means

    def _end_epoch(self, epoch: int) -> None:
        means = self._look()
        row: dict[str, Any] = {"epoch": epoch, "step": self.progress.step, "seconds": None}
        row["learning_rate"] = learning_rate(self.progress.step - 1, self.total, self.config)
        row["train"] = means
        self.team.settle(self.model)
        with self._decided(row):
            self._evaluate(row)
            self._tick()
            row["seconds"] = round(self.progress.seconds, 3)
            self.progress.rows.append(row)
            if self._selected() == len(self.progress.rows) - 1:
                self.progress.kept = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.means.reset()
        self._save()
        for listener in self.listeners:
            listener.epoch(row)

    @contextmanager
    def _decided(self, row: dict[str, Any]) -> Iterator[None]:
        """The network with the line between classes drawn as the configuration says; training goes on without."""
        if self.config.decision == "argmax" or self.validation is None:
            yield
            return
        said = self.team.logits(self.fast, self.validation.images, autocast=self.autocast)
        offsets = decide(said, self.validation, self.config.decision)
        row["offsets"] = offsets.tolist()
        with moved(movable_head(self.model), offsets):
            yield

    def _evaluate(self, row: dict[str, Any]) -> None:
        """Put what the network is worth on all splits and pairs into `row`."""
        for split, part in self.parts.items():
            said = self.team.logits(self.fast, part.images, autocast=self.autocast)
            row[split] = metrics(said, part, training=self.batches.table)
        row["pair_disagreement"] = pair_disagreement(self.fast, self.held_out, autocast=self.autocast)
        trained_on = self.pairs if self.sampler is not None else None
        row["train_pair_disagreement"] = pair_disagreement(self.fast, trained_on, autocast=self.autocast)
        if trained_on is not None and self.config.batch_norm == "train":
            both = torch.cat([trained_on.first, trained_on.second])
            gap = batch_norm_gap(self.model, both, self.batches.table.images, autocast=self.autocast)
            row |= {} if gap is None else {"batch_norm_gap": gap}

    def _finish(self) -> Outcome:
        self.model.load_state_dict(self.progress.kept)
        self.model.eval()
        result = self._result()
        if self.home is not None and self.team.leads:
            self.home.finish(self.progress.kept, self.progress.rows, result)
        for listener in self.listeners:
            listener.finished(result)
        return Outcome(self.model, self.progress.rows, result)

    def _result(self) -> dict[str, Any]:
        rows = self.progress.rows
        kept, final = rows[self._selected()], rows[-1]

        def summary(row: dict[str, Any]) -> dict[str, Any]:
            test = row.get("test") or {}
            return {**test, "pair_disagreement": row["pair_disagreement"]}

        return {
            "config": settled(self.config),
            "selection": self.config.selection,
            "selected_epoch": kept["epoch"],
            **({"offsets": kept["offsets"]} if "offsets" in kept else {}),
            "metrics": summary(kept),
            "last_metrics": summary(final),
            "seconds": round(self._earlier + self.progress.seconds, 3),
            "preparing_seconds": round(self.step.preparing, 3),
            **provenance(self.device),
            **({"processes": self.team.size} if self.team.size > 1 else {}),
        }

    # -- state ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Add the time since the last tick to the run's own."""
        now = time.perf_counter()
        self.progress.seconds += now - self._clock
        self._clock = now

    def _save(self) -> None:
        self._last_save = time.perf_counter()
        if self.home is None:
            return
        self._tick()
        self.means.average(self.team.peers)
        self.team.settle(self.model)
        if not self.team.leads:
            return
        state = {
            "progress": vars(self.progress),
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "sampler": self.sampler.state_dict() if self.sampler is not None else None,
            "means": self.means.state_dict(),
            "random": random_state(self.device),
        }
        self.home.save(state, self.progress.rows)

    def _restore(self) -> None:
        state = self.team.first(self.home.load) if self.home is not None else None
        if state is None:
            return
        self.progress = _Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.method.load_state_dict(state["method"])
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])
        self.means.load_state_dict({name: total.to(self.device) for name, total in state["means"].items()})
        if self.team.leads:
            set_random_state(state["random"])
        else:
            self._seed()  # again, now that the step is known

    def _seed(self) -> None:
        """Seed what is random in training. Dropout and the like differ between processes, as they do between rows."""
        purpose = ("training",) if self.team.leads else ("training", self.team.index, self.progress.step)
        seed_generators(derive_seed(self.config.seed, *purpose), self.device)

    def read_back(self, weights: dict[str, Tensor], rows: list[dict[str, Any]], result: dict[str, Any]) -> Outcome:
        """The outcome of a run that is done already."""
        self.model.load_state_dict(weights)
        self.model.eval()
        return Outcome(self.model, rows, result)


def _iterations(config: RunConfig, table: ImageTable) -> int:
    """About how many iterations a run makes: methods that sample may make an epoch shorter or longer."""
    return config.epochs * (config.steps or math.ceil(len(table.indices("train")) / config.batch))
