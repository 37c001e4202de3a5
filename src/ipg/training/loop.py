"""The one training loop: every method, every data set, resumable at every step.

    for each epoch:
        for each batch:        set the rate, draw pairs when due, let the method step
        evaluate, keep the epoch if the selection rule says so, save
    a run that collapses begins again, with half the learning rate, as often as the configuration allows

The state after a step is a function of the configuration and the step alone: the order of an epoch comes from the
seed, everything else that is random has its state in the checkpoint. So a killed run ends with the same bits, on
a CPU; on a GPU only deterministic kernels can promise it. A run that goes wrong is ended at a step that depends on
nothing else either: the clock decides when it is shown and saved, never what comes of it.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.batch_norm import keep_statistics
from ipg.guidance import CollapseError, Guidance, NonFiniteError
from ipg.methods import method_class
from ipg.restarts import rate_after
from ipg.seeds import derive_seed
from ipg.training.assembly import Assembly
from ipg.training.device import (
    numerics,
    own_randomness,
    random_state,
    resolve_device,
    seed_generators,
    set_random_state,
)
from ipg.training.distributed import Team
from ipg.training.engine import compiling, resolve, traces
from ipg.training.folder import FIRST_STAGE, RunFolder
from ipg.training.identity import identify
from ipg.training.interrupt import Interrupted, StopRequest, late_request, stop_on_signals
from ipg.training.judging import Judge
from ipg.training.listeners import FirstStage, Listener
from ipg.training.materials import Materials
from ipg.training.memory import OutOfMemoryError, fitting_batch, memory_of_others
from ipg.training.optimization import learning_rate, set_rate
from ipg.training.outcome import Outcome, Progress
from ipg.training.provenance import provenance
from ipg.training.sharding import check_shards, is_sharded, laid_like, outlined, whole
from ipg.words import times

__all__ = ["Outcome", "Training", "train"]

CHECK_STEPS = 64
"""Iterations after which a run is checked for what ends it, beside the end of an epoch: by their number and not by the
clock, so that a run ends alike on machines of any speed. The device is waited for, for less than a thousandth of the
time at 1 ms an iteration."""
LOOK_SECONDS = 0.5
"""How often the listeners are told how it goes."""
SAVE_SECONDS = 60.0
"""How often a checkpoint is written inside an epoch."""
SAVE_SHARE = 0.02
"""Of the time, at most, that checkpoints at the end of epochs may take: of short epochs not every one is saved, but the
first and the last always are."""


def train(
    config: RunConfig,
    materials: Materials,
    *,
    folder: Path | None = None,
    listeners: Sequence[Listener] = (),
    evaluate_on: Sequence[str] | None = None,
    evaluate_once: Sequence[str] = (),
) -> Outcome:
    """Train as `config` says on `materials`.

    Args:
        config: what to do.
        materials: data, pairs and network to do it with.
        folder: where the run lives. A run found there goes on where it stopped; a finished one is read back.
        listeners: who is told.
        evaluate_on: splits to evaluate after each epoch; all but `train` where not given.
        evaluate_once: further splits, to evaluate when training is over: with the last network and with the kept one.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the state is saved.
        NonFiniteError, CollapseError: training has gone wrong; the message names the remedies.
        OutOfMemoryError: a batch does not fit on the device; the message says which one would.
        ProcessLostError: of several processes that train together, another is gone.
    """
    team = Team()
    device = team.device(resolve_device(config.device))
    home = None if folder is None else RunFolder(folder)
    with team.together():
        saved = None if home is None else team.first(home.settings)
    config = resolve(config if saved is None else config.as_before(saved), device, processes=team.size)
    with ExitStack() as stack:
        if traces(config, device):
            stack.enter_context(compiling())
        stack.enter_context(team.together())
        stack.enter_context(own_randomness(device))
        images = len(materials.table.indices("train"))
        stack.enter_context(numerics(config, device, iterations=config.iterations(images)))
        identity, origin = identify(config, materials, device)
        team.check_same("settings or data", (identity, config.shard))
        check_shards(config, processes=team.size)
        listeners = listeners if team.leads else ()
        claim = nullcontext() if home is None else home.claim(identity, origin)
        before, first = method_class(config.method).first_stage(config), None
        if before is not None:
            model = materials.model
            Judge(config.suited(), materials, evaluate_on, model, model, team, None, once=evaluate_once)  # may refuse
            team.first(lambda: stack.enter_context(claim))
            first = _first_stage(before, materials, folder, listeners, team)
        if device.type == "cuda":
            gc.collect()  # what earlier runs have left: images lie on the GPU where they fit
        shards = team.shares(config)  # every attempt shards a copy of the network, which itself stays as it is
        placed = materials.to(device, resident=config.resident, network=not shards)
        beginning = _weights(placed.model) if config.restarts and not shards else {}
        assemble = partial(Training, config, placed, device, listeners, evaluate_on, team, first, evaluate_once)
        attempt = stack.enter_context(ExitStack())
        run = assemble()  # may refuse
        attempt.callback(run.method.close)
        if first is None:
            team.first(lambda: stack.enter_context(claim))
        if home is not None:
            run.home = home
            if (found := team.first(home.finished)) is not None:
                return run.read_back(*found)
        request = stack.enter_context(stop_on_signals())
        while (outcome := run.go(request)) is None:
            progress = run.again()
            attempt.close()
            del run
            gc.collect()  # or what it holds on the device would lie there beside the next
            if beginning:
                placed.model.load_state_dict(beginning)
            run = assemble()
            attempt.callback(run.method.close)
            run.home, run.progress = home, progress
        return outcome


def _first_stage(
    before: RunConfig, materials: Materials, folder: Path | None, listeners: Sequence[Listener], team: Team
) -> Outcome:
    """The run that comes before, trained in a folder inside the run's own."""
    before = before.with_changes(decision="argmax")
    own = replace(materials, model=copy.deepcopy(materials.model), pairs=None, held_out=None)
    place = None if folder is None else folder / FIRST_STAGE
    with late_request() as late:
        first = train(before, own, folder=place, listeners=[FirstStage(one) for one in listeners], evaluate_on=())
    if any(team.agree(late.made)):
        raise Interrupted("stopped after the first stage")
    return first


class Training(Assembly):
    """A run: its parts, where it is, and the loop over them."""

    def __init__(
        self,
        config: RunConfig,
        materials: Materials,
        device: torch.device,
        listeners: Sequence[Listener],
        evaluate_on: Sequence[str] | None,
        team: Team,
        first: Outcome | None = None,
        evaluate_once: Sequence[str] = (),
    ) -> None:
        super().__init__(config, materials, device, evaluate_on, team, first, evaluate_once)
        self.listeners = listeners
        self.home: RunFolder | None = None
        self.progress = Progress()
        self._earlier = 0.0 if first is None else float(first.result["seconds"])
        self._prepared_earlier = 0.0 if first is None else float(first.result.get("preparing_seconds", 0.0))
        self._clock = self._last_look = self._last_save = time.perf_counter()
        self._save_took = 0.0

    # -- the loop ------------------------------------------------------------------------------------------------

    def go(self, request: StopRequest) -> Outcome | None:
        """Train from where the run's folder stopped, or from the beginning; None where the run is to begin again."""
        self._seed()
        self._restore()
        home, restarts = self.home if self.team.leads else None, self.progress.restarts
        if home is not None:
            home.go_on()
        if restarts and not self.progress.step:
            self._save()  # over what the attempt before has left
        try:
            return self._go(request)
        except (CollapseError, NonFiniteError) as error:
            if isinstance(error, CollapseError) and restarts < self.config.restarts:
                self._tell_of_restart(error)
                return None
            told = self._told_of_attempts(error) if restarts else error
            if home is not None:
                home.fail(told, step=self.progress.step, restarts=restarts)
            self._tick()
            for listener in self.listeners:
                listener.failed(told, restarts=restarts, seconds=self._seconds)
            raise told from None

    def again(self) -> Progress:
        """Where the run is when it begins again: nowhere, but the time that it took is its own."""
        self._tick()
        done = self.progress
        return Progress(seconds=done.seconds, preparing_seconds=done.preparing_seconds, restarts=done.restarts + 1)

    def _told_of_attempts(self, error: CollapseError | NonFiniteError) -> CollapseError | NonFiniteError:
        """What ended the run, and what was tried before; the rate that was asked for may be far from the last."""
        rate = rate_after(self.config.learning_rate, self.progress.restarts)
        again = times(self.progress.restarts)
        return type(error)(f"{error} It had begun again {again}, at last with a learning rate of {rate:g}.")

    def _tell_of_restart(self, error: CollapseError) -> None:
        number = self.progress.restarts + 1
        for listener in self.listeners:
            listener.restarted(error, number=number, rate=rate_after(self.config.learning_rate, number))

    def _go(self, request: StopRequest) -> Outcome:
        for listener in self.listeners:
            listener.started(self.config, step=self.progress.step, total=self.total)
        self._clock = self._last_look = self._last_save = time.perf_counter()
        self.model.train()
        if self.config.batch_norm == "eval":
            keep_statistics(self.model)
        with self.step.timed():
            self.judge.prepare()
        while self.progress.step < self.total:
            epoch, start = divmod(self.progress.step, len(self.batches))
            for rows in self.batches.rows(epoch, start=start):
                set_rate(self.optimizer, self._rate(self.progress.step))
                self._step(rows)
                self.progress.step += 1
                self._between_steps(request)
            self._end_epoch(epoch + 1)
            if any(self.team.agree(request.made)) and self.progress.step < self.total:
                self._save()
                self._stop()
        if self.validation is not None and self.method.refits and len(self.progress.rows) == self.config.epochs:
            self._refit(self.validation)
        self._check_end()
        return self._finish()

    def _rate(self, step: int) -> float:
        """The learning rate of an iteration (from 0): half of the schedule's for each time that the run began again."""
        return rate_after(learning_rate(step, self.total, self.config), self.progress.restarts)

    def _step(self, rows: Tensor) -> None:
        """One iteration; where the device has not enough memory for it, find out how much of the batch would fit."""
        with suppress(torch.OutOfMemoryError):  # inside, the error would hold on to all that the step has made
            self.step(rows)
            return
        fits = fitting_batch(self.step.rehearse, self._full_batch(rows)) if self.team.size == 1 else None
        self.step.release()
        raise OutOfMemoryError(
            batch=self.config.batch,
            pair_batch=self.config.pair_batch if self.sampler is not None else None,
            fits=fits,
            kept=self.home is not None and self.home.checkpoint.exists(),
            others=memory_of_others(self.device),
        )

    def _full_batch(self, rows: Tensor) -> Tensor:
        """As many rows as a batch has, of one that may be the last of an epoch."""
        return rows.repeat(-(-self.config.batch // len(rows)))[: self.config.batch]

    def _refit(self, validation: ImageTable) -> None:
        """Let the method change the kept network; one more row tells what it is worth, and is the one that is kept."""
        kept = self.progress.rows[self.progress.selected(self.config)]["epoch"]
        self.model.load_state_dict(self.progress.kept)
        self.method.refit(self.model, validation)
        self.team.settle(self.model, parameters=True)
        self._end_epoch(self.config.epochs + 1, refitted=kept)

    def _between_steps(self, request: StopRequest) -> None:
        step, now = self.progress.step, time.perf_counter()
        last = step % len(self.batches) == 0  # of its epoch, which is checked and saved at its end
        if step % CHECK_STEPS == 0 and not last:
            self._check()
        look, save, stop = self.team.agree(
            now - self._last_look >= LOOK_SECONDS, now - self._last_save >= SAVE_SECONDS, request.made, step=step
        )
        if look:
            self._last_look = now
            self._tell(self.means.over(self.team.peers).numbers())
        if last:
            return
        if save or stop:
            self._save()
        if stop:
            self._stop()

    def _stop(self) -> NoReturn:
        raise Interrupted(f"stopped after {self.progress.step} of {self.total} iterations")

    def _check(self) -> dict[str, float]:
        """Ask the device how it goes and stop if it goes wrong; gives the means of this epoch so far."""
        means = self.means.over(self.team.peers).numbers()
        self.method.check()
        if not math.isfinite(means.get("task_loss", 0.0)):
            raise NonFiniteError(
                f"the loss is NaN or infinite by iteration {self.progress.step}. Likely causes: a NaN in the images, "
                f"or a learning rate that is too high ({self.config.learning_rate:g})."
            )
        return means

    def _check_end(self) -> None:
        """Stop where a network is to be kept as it collapsed, however few corrections there were to see it."""
        guide = getattr(self.method, "guide", None)
        if isinstance(guide, Guidance) and self.progress.selected(self.config) == len(self.progress.rows) - 1:
            guide.check(ended=True)

    def _tell(self, means: dict[str, float]) -> None:
        rate = self._rate(self.progress.step - 1)
        for listener in self.listeners:
            listener.progress(self.progress.step, means | {"learning_rate": rate})

    def _end_epoch(self, epoch: int, *, refitted: int | None = None) -> None:
        """Evaluate and save; `refitted` is the epoch whose network was fitted anew, where that is what has ended."""
        means = self._check()
        self._tell(means)
        row: dict[str, Any] = {"epoch": epoch, **({} if refitted is None else {"refitted": refitted})}
        row |= {"restarts": self.progress.restarts} if self.progress.restarts else {}
        row |= {"step": self.progress.step, "seconds": None}
        row["learning_rate"] = self._rate(self.progress.step - 1)
        row["train"] = means
        self.team.settle(self.model)
        with self.judge.decided(row):
            self.judge.evaluate(row)
            self._tick()
            row["seconds"] = round(self.progress.seconds, 3)
            self.progress.rows.append(row)
            if self.progress.selected(self.config) == len(self.progress.rows) - 1:
                self.progress.kept = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.means.reset()
        worth_it = self.team.leads and time.perf_counter() - self._last_save >= self._save_took / SAVE_SHARE
        if any(self.team.agree(worth_it or self.progress.step == self.total)):
            self._save()
        elif self.home is not None and self.team.leads:
            self.home.write_metrics(self.progress.rows)
        for listener in self.listeners:
            listener.epoch(row)

    def _finish(self) -> Outcome:
        last, kept = self.progress.rows[-1], self.progress.rows[self.progress.selected(self.config)]
        with self.judge.drawn(last):
            self.judge.evaluate_once(last)
        self.model.load_state_dict(self.progress.kept)
        self.model.eval()
        self.judge.evaluate_once(kept)
        self._tick()
        result, weights = self._result(), whole(self.progress.kept)
        if self.home is not None and self.team.leads:
            self.home.finish(weights, self.progress.rows, result)
        for listener in self.listeners:
            listener.finished(result)
        return self.read_back(weights, self.progress.rows, result)

    def _result(self) -> dict[str, Any]:
        return {
            **self.progress.result(self.config),
            "seconds": self._seconds,
            "preparing_seconds": round(self._prepared_earlier + self.progress.preparing_seconds, 3),
            **provenance(self.device),
            **({"processes": self.team.size} if self.team.size > 1 else {}),
        }

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        """What the run took, its first stage and every process that went on with it included."""
        return round(self._earlier + self.progress.seconds, 3)

    def _tick(self) -> None:
        """Add the time since the last tick to the run's own, and what of it went into preparing."""
        now = time.perf_counter()
        self.progress.seconds += now - self._clock
        self._clock = now
        self.progress.preparing_seconds += self.step.preparing
        self.step.preparing = 0.0

    def _save(self) -> None:
        begun = self._last_save = time.perf_counter()
        if self.home is None:
            return
        self._tick()
        kept = whole(self.progress.kept, keep=self.team.leads)
        if (parts := self.state()) is None:
            return
        state = {"progress": vars(self.progress) | {"kept": kept}, **parts, "random": random_state(self.device)}
        self.home.save(state, self.progress.rows)
        self._save_took = time.perf_counter() - begun

    def _restore(self) -> None:
        if self.home is None:
            return
        read = partial(outlined, self.team.first) if is_sharded(self.model) else self.team.first
        if (state := read(self.home.load)) is None:
            return
        found = Progress(**state["progress"])
        if found.restarts < self.progress.restarts:
            return  # of before the run began again
        self.progress = found
        self.progress.kept = dict(laid_like(self.model.state_dict(), found.kept) if found.kept else {})
        self.load_state(state)
        if self.team.leads:
            self.home.mend_metrics(self.progress.rows)  # which listeners may read
            set_random_state(state["random"])
        else:
            self._seed()  # again, now that the step is known

    def _seed(self) -> None:
        """Seed what is random in training. Dropout and the like differ between processes, as they do between rows."""
        purpose = ("training",) if self.team.leads else ("training", self.team.index, self.progress.step)
        seed_generators(derive_seed(self.config.seed, *purpose), self.device)

    def read_back(self, weights: dict[str, Tensor], rows: list[dict[str, Any]], result: dict[str, Any]) -> Outcome:
        """The outcome of a run that is done, whose network is whole on every process."""
        model = self.plain if is_sharded(self.model) else self.model
        model.load_state_dict(weights)
        return Outcome(model.eval(), rows, result)


def _weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """All weights as they are now, off the device."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
