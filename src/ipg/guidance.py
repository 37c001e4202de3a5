"""Invariance Pair Guidance: the method, as a step over your model and your optimizer.

Surner, Khelil and Bothmann, "Invariance Pair Guidance: Robustness to Spurious Correlations via Corrective
Gradients", Machine Learning 2026, Algorithm 1. With a task batch (x, y) and a batch of n pairs, each iteration makes

1. the *corrective* update, with `g_C = ∇(L_A + L_U)` at the present parameters and

       L_A = 1/n Σ_i ‖R_i − R'_i‖_F
       L_U = 1/(2n²) Σ_{Q ∈ {R, R'}} Σ_{i,j} [y_i ≠ y_j] · max(0, m − ‖Q_i − Q_j‖_F)

2. the *task* update at the corrected parameters, with `g_T = ∇L_T` rescaled by the share δ of disagreeing pairs:

       g_T ← α ‖g_C‖ g_T/‖g_T‖                        if δ ≥ τ        (condition violated)
       g_T ← clip(g_T, 2 max(ε, ‖g_C‖))               otherwise       (condition met)

Differs from the paper: `every=k` corrects only at each k-th iteration and rescales those between by the last
correction (docs/theory.md); `every="auto"` lets k follow the disagreement (`ipg.pace`); the margin may be relative to
the first distances; `jitter` pushes collapsed rationales apart. All are off by default. What the paper leaves open is
settled in docs/decisions.md. This file needs torch alone, beside its neighbours that do the same, and no step
waits for the device; with `every="auto"` it may wait for the correction before the last, and a GradScaler may wait.

With many processes all of this is said of the *whole* batches, of which each process has a shard (docs/scale.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

import ipg.settings as settings
from ipg.collectives import Group, find_peers
from ipg.comparison import Comparison, compare, compiled, is_compiled
from ipg.condition import TaskScale, task_scale
from ipg.forward import PairForward
from ipg.gradients import (
    check_cleared,
    check_dense,
    check_found,
    check_none_yet,
    check_place,
    check_reentry,
    global_norm,
    set_gradients,
    unscale,
    widest,
)
from ipg.pace import Every, FollowingPace, Pace
from ipg.paired import DrawsPairs, Pairs, check_kind, next_batch
from ipg.records import Correction, Report, Spread, Terms, as_number, keep_correction, keep_pairs, plain_report
from ipg.watch import TASK, CollapseError, NonFiniteError, Watch, count_norm

__all__ = [
    "CollapseError", "Correction", "DrawsPairs", "Guidance", "NonFiniteError", "Pairs", "Report", "Spread", "TaskScale",
    "Terms", "task_scale",
]  # fmt: skip


class Guidance:
    """Guides the training of `model` by invariance pairs: two updates an iteration, by one optimizer.

    Args:
        model: any classifier with a linear head (`ipg.rationale.find_head` says which are found by themselves).
        optimizer: a built optimizer that steps without a closure. Its trainable parameters are the ones corrected;
            weight decay acts in both updates: 1 + 1/k times an iteration where each k-th corrects.
        alpha: length of the task gradient as a share of the correction's while the condition is violated. Raise it
            only when the task signal is weak.
        tau: share of disagreeing pairs from which the condition counts as violated; 0 means always. The paper raises
            it when pairs may mislead; in our runs that did not help (docs/results.md).
        margin: distance that rationales of different classes keep: a number, as in the paper, or a multiple such as
            "0.85x" of the mean distance between rationales of different labels at the first correction. 0 switches
            the uniformity term off.
        every: correct at each k-th iteration, the first included; 1 is the paper. Keep `every * alpha` below 1. "auto"
            corrects at every iteration while pairs disagree and ever more rarely while they agree, within that bound.
        floor: the paper's ε, least length the task gradient is clipped to when the condition is met.
        batch_norm: "train" leaves BatchNorm as it is set (pair and task batches both update its statistics); "eval"
            keeps it in eval mode everywhere, whatever `model.train()` says, until `close` or until this object is
            gone: advised for pretrained networks.
        head: the linear layer that makes the logits, where it is not found by itself.
        scaler: the GradScaler of an fp16 run; `step` steps and updates it, after `rescale` both are yours. It waits for
            the device at every update of an optimizer that is not fused.
        autocast: dtype in which the pair batch runs through the model, e.g. torch.bfloat16; None runs it as the
            surrounding code would.
        distance: "rationale" (the method), "features" or "logits" (for studies).
        strict: compare `δ > τ` in place of `δ ≥ τ`.
        jitter: ours: noise on rationales in the uniformity term, as a share of the margin, so that rationales that
            have collapsed onto one point are still pushed apart; 0 is the paper.
        generator: source of the jitter; the device's default where it is not given.
        process_group: the processes that train this model together, each on its shard of every batch. "auto" takes
            those of DistributedDataParallel or `fully_shard`, around a bare model all that torch.distributed knows
            of; None is this process alone. The task gradient of a bare model is averaged here, too.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        alpha: float = 0.1,
        tau: float = 0.0,
        margin: float | str = 0.1,
        every: Every = 1,
        floor: float = 1e-3,
        batch_norm: Literal["train", "eval"] = "train",
        head: nn.Linear | None = None,
        scaler: torch.amp.GradScaler | None = None,
        autocast: torch.dtype | None = None,
        distance: Literal["rationale", "features", "logits"] = "rationale",
        strict: bool = False,
        jitter: float = 0.0,
        generator: torch.Generator | None = None,
        process_group: Group = "auto",
    ) -> None:
        self._asked, (number, relative) = margin, settings.parse_margin(margin)
        settings.check_settings(
            alpha=alpha, tau=tau, every=every, floor=floor, batch_norm=batch_norm, autocast=autocast, distance=distance,
            jitter=jitter,
        )  # fmt: skip
        settings.check_optimizer(model, optimizer)
        settings.check_wrappers(model)
        self.model, self.optimizer = model, optimizer
        self._to_none = {"set_to_none": True} if settings.takes(optimizer.zero_grad, "set_to_none") else {}
        self.alpha, self.tau, self.floor, self.strict = alpha, tau, floor, strict
        self.scaler, self.jitter, self.generator = scaler, jitter, generator
        self._every, self._batch_norm, self._autocast, self._distance = every, batch_norm, autocast, distance
        self.peers = find_peers(model, process_group)
        parameters = self.parameters()
        settings.check_parameters(parameters)
        self._forward = PairForward(
            model, head, distance=distance, autocast=autocast, hold=batch_norm == "eval", peers=self.peers
        )
        self._compiled = is_compiled(model) and parameters[0].device.type == "cuda"
        self._looked = False
        self._followed: set[int] = set()

        self.iteration = 0
        self._values = torch.zeros(4, dtype=widest(parameters), device=parameters[0].device)
        self._values[2] = 1.0  # until a correction has been finite, all pairs count as disagreeing
        self.correction = Correction(self._values)
        self._relative = number if relative else None
        self._margin = self._values.new_tensor(math.nan if relative else number)
        self._spread = self._values.new_zeros(3)
        self.pace = FollowingPace(alpha=alpha, tau=tau, like=self._values) if every == "auto" else Pace(int(every))
        self.watch = Watch(self._values.device)

    def __repr__(self) -> str:
        names = ("alpha", "tau", "every", "batch_norm", "iteration")
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"Guidance({type(self.model).__name__}, {type(self.optimizer).__name__}, margin={self._asked!r}, {told})"

    def parameters(self) -> list[Tensor]:
        """The trainable parameters of the optimizer: those that both updates move and both norms count."""
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    # -- Algorithm 1 -----------------------------------------------------------------------------------------------

    def step(self, task_loss: Callable[[], Tensor], pairs: Pairs | DrawsPairs | None) -> Report:
        """Make one iteration: the corrective update when one is due, then the rescaled task update.

        It refuses to begin over accumulated gradients, and leaves none: `correct` and `rescale` are for accumulation.

        Args:
            task_loss: returns the loss of the task batch. It is called after the correction and, unlike a closure of
                torch's optimizers, must not run backward itself.
            pairs: a batch of pairs or a sampler, which is drawn from only when a correction is due. None makes a
                plain training step, bit for bit.
        """
        settings.check_task(task_loss)
        if pairs is not None:
            check_kind(pairs)
        self._begin()
        try:
            if pairs is not None:
                self._iterate(pairs)
            loss = task_loss()
            settings.check_loss(loss, self.parameters())
            self._scaled(loss).backward()  # type: ignore[no-untyped-call]
            if pairs is None:
                self._average()
                report = plain_report(loss)
            else:
                report = self._rescale(self.correction, loss)
            self._update()
        finally:
            self._clear()  # a step that fails leaves none of its gradients to the next
        return report

    def correct(self, pairs: Pairs | DrawsPairs) -> Correction:
        """Make the corrective update when one is due; otherwise return the last correction, drawing nothing.

        Call it once an iteration, before the first micro-batch runs through the model: the task's gradient is that of
        the corrected parameters.
        """
        check_kind(pairs)
        self._begin()
        self._iterate(pairs)
        return self.correction

    def _correct(self, pairs: Pairs) -> None:
        """Lines 1 to 10: the corrective update; nothing here asks the device for a value."""
        parameters = self.parameters()
        try:
            with self.comparing():  # to the end of the backward pass, in which checkpointed layers run again
                terms = self.terms(pairs)
                gradients = self.gradients(terms.alignment + terms.uniformity, parameters)
            set_gradients(parameters, gradients)
            if not self.peers.sharded:
                self.peers.mean_(cast(Tensor, parameter.grad) for parameter in parameters)
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = global_norm([cast(Tensor, parameter.grad) for parameter in parameters])
            self._update()
        finally:
            self._clear()  # a correction that fails leaves none of its gradients to the next
        check_cleared(self.optimizer, parameters)
        torch.clear_autocast_cache()  # inside the caller's autocast the task batch would meet the weights of before
        self.watch.counters[0] += 1
        self._run(keep_correction)(self._values, self.watch.counters, [term.detach() for term in terms], norm)

    def terms(self, pairs: Pairs) -> Terms:
        """Lines 1 to 8: run a batch of pairs through the model and compare its rationales.

        The losses carry their graph, for those who want to weigh them in another way; `correct` is the method. Of
        several processes each has the losses of the whole batch; the mean of their gradients is the gradient.
        Where layers are checkpointed, run the backward pass inside `comparing`, too.
        """
        embedded, label, differ = self._forward(pairs, self.parameters(), self.iteration)  # (2n, D), (n,), (n,)
        noise = None
        if self.jitter:
            shape = (2, len(label), embedded.shape[1])
            noise = torch.randn(shape, generator=self.generator, device=embedded.device, dtype=embedded.dtype)
            self.peers.broadcast_(noise)
        found: Comparison = self._run(compare)(
            embedded, label, differ, self._margin.clone(), relative=self._relative, jitter=self.jitter, noise=noise
        )
        self._run(keep_pairs)(self._margin, self._spread, self.watch.counters, self.watch.widest, found)
        return Terms(found.alignment, found.uniformity, found.disagreement)

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradients of a loss from `terms`. Under FSDP2 they are also left in `.grad`."""
        if not loss.requires_grad:
            raise RuntimeError("the corrective loss reaches no trainable parameter: everything it touches is frozen")
        gradients: Sequence[Tensor | None]
        if self.peers.sharded:  # gathering and reducing shards is the business of FSDP's own backward pass
            self._scaled(loss).backward()  # type: ignore[no-untyped-call]
            gradients = [parameter.grad for parameter in parameters]
        else:
            if not self._followed.issuperset(map(id, parameters)):  # at first, and when layers are unfrozen
                check_reentry(loss, self.model, self._forward.tap.head, parameters)
                self._followed.update(map(id, parameters))
            gradients = torch.autograd.grad(self._scaled(loss), list(parameters), allow_unused=True)
        check_found(gradients)
        return gradients

    def rescale(self, correction: Correction, task_loss: Tensor | None = None) -> Report:
        """Lines 13 to 19: rescale the accumulated task gradient in place; `optimizer.step()` follows.

        With a GradScaler it also unscales, unless you have.
        """
        return self._rescale(correction, task_loss)

    def _rescale(self, correction: Correction, task_loss: Tensor | None) -> Report:
        """What `step` and `rescale` share, one frame below either, so that a warning points to their caller."""
        if correction is self.correction and self.iteration == 0:
            raise RuntimeError("there is no correction to rescale by yet: call correct(pairs) before the backward pass")
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if not gradients:
            raise RuntimeError("there is no task gradient to rescale: run backward between correct and rescale")
        check_dense(gradients)
        if not self._looked:
            settings.warn_of_others(self.model, self.parameters())
            self._looked = True
        self._average()
        if self.scaler is not None:
            unscale(self.scaler, self.optimizer)
        norm = global_norm(gradients)
        outcome: TaskScale = self._run(task_scale)(
            norm, correction.norm, correction.disagreement, alpha=self.alpha, tau=self.tau, floor=self.floor,
            strict=self.strict,
        )  # fmt: skip
        torch._foreach_mul_(gradients, outcome.scale)
        self._run(count_norm)(self.watch.counters, norm, TASK)
        loss = torch.full_like(norm, math.nan) if task_loss is None else as_number(task_loss)
        return Report._make([loss, *correction.values.clone(), norm, *outcome])

    # -- which iterations correct ----------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether the next iteration corrects; known before the step, without asking the device."""
        return self.pace.due(self.iteration)

    def _begin(self) -> None:
        """Refuse to begin elsewhere than on the device, with other gradients there, or by settings out of range."""
        parameters = self.parameters()
        check_place(parameters, self._values.device)
        check_none_yet(parameters)
        settings.check_numbers(alpha=self.alpha, tau=self.tau, floor=self.floor, jitter=self.jitter)
        if self.iteration == 0 and self.scaler is None:
            settings.warn_of_half(self.autocast, self._values.device)
        self.pace.limit(alpha=self.alpha, tau=self.tau)
        self._forward.modes.hold()

    def _iterate(self, pairs: Pairs | DrawsPairs) -> None:
        """Correct when it is due, and count the iteration: one that is refused is none."""
        if self.due:
            self._correct(next_batch(pairs))
            self.pace.note(self.iteration, self._values[2])
        else:
            self.watch.counters[0] += 1
        self.iteration += 1

    def count(self, found: Terms | None) -> None:
        """Count an iteration of a loop that uses `terms` in the place of `correct`, and what they were if it did."""
        if found is not None:
            self._values[2].copy_(found.disagreement)
            self.pace.note(self.iteration, self._values[2])
        self.iteration += 1

    def replayed(self) -> None:
        """Count an iteration that a captured graph has made in the place of `step`."""
        if self.due:
            self.pace.note(self.iteration, self._values[2])
        self.iteration += 1

    # -- gradients and updates, with a GradScaler or without, in one process or several ------------------------------

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _update(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
            return
        try:
            self.scaler.step(self.optimizer)
        except BaseException:
            self.scaler.update(self.scaler.get_scale())  # or the next step would take its gradients for unscaled ones
            raise
        self.scaler.update()

    def _clear(self) -> None:
        """No gradients, not even zeros, whatever the optimizer's own habit."""
        self.optimizer.zero_grad(**self._to_none)

    def _average(self) -> None:
        """The task gradient of the whole batch, where no wrapper of the model has made it already."""
        if self.peers.averages:
            self.peers.mean_(parameter.grad for parameter in self.parameters() if parameter.grad is not None)

    def _run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, compiled where the model is."""
        return compiled(function) if self._compiled else function

    # -- what it tells ----------------------------------------------------------------------------------------------

    @property
    def every(self) -> Every:
        """Which iterations correct; like the settings below, it is settled when a guidance is made."""
        return self._every

    @property
    def batch_norm(self) -> str:
        """Whether BatchNorm is kept in eval mode."""
        return self._batch_norm

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype that pairs run in."""
        return self._autocast

    @property
    def distance(self) -> str:
        """What is compared."""
        return self._distance

    @property
    def margin(self) -> Tensor:
        """The margin in force, a scalar on the device; NaN while a relative one is not measured yet."""
        return self._margin

    @property
    def spread(self) -> Spread:
        """How the last batch of pairs lies to the margin."""
        return Spread._make(self._spread)

    @property
    def skipped(self) -> Tensor:
        """How many updates had a non-finite gradient (skipped where a GradScaler is in use); on the device."""
        return self.watch.non_finite

    def check(self, *, ended: bool = False) -> None:
        """Raise if training has gone wrong since the start: a non-finite step or a collapse. Waits for the device.

        Args:
            ended: whether training is over: then three corrections that find a collapse are enough, where 20 have to
                do so before, and short runs may not have as many.

        Raises:
            NonFiniteError: a loss or gradient was NaN or infinite and no GradScaler was there to skip it, or one has
                skipped every update of a kind for long.
            CollapseError: all images of the pairs have stood on one point for many corrections.
        """
        self.watch.check(skips=self.scaler is not None and self.scaler.is_enabled(), ended=ended)

    # -- modes and state --------------------------------------------------------------------------------------------

    def comparing(self) -> AbstractContextManager[None]:
        """Dropout and its kin off, as pairs are compared; the modes come back afterwards."""
        return self._forward.modes.comparing()

    def close(self) -> None:
        """Leave the model plain, also to be pickled whole: no hook at its head, BatchNorm as `model.train()` says."""
        self._forward.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly, inside a cycle of `every` included; a `generator` is the caller's."""
        return {
            "iteration": self.iteration,
            "correction": self._values.clone(),
            "margin": self._margin.clone(),
            "relative": -1.0 if self._relative is None else self._relative,
            **({"pace": pace} if (pace := self.pace.state_dict()) else {}),
            **{f"watch.{name}": counter for name, counter in self.watch.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; tensors keep their place, as captured graphs need. A wrong one changes nothing.

        Settings are those of this object, the margin included: one that was measured is kept where the same multiple
        is asked for, and measured anew where another is.
        """
        counters = self.watch.counters
        like = self.state_dict() | {"watch.counters": (counters, counters[:4])}  # fewer in those of earlier versions
        settings.check_state("Guidance", state, like, may_lack=_MAY_LACK)
        self.pace.load_state_dict(state.get("pace", {}))  # first, as it has to be looked at, too
        self.iteration = int(state["iteration"])
        self._values.copy_(state["correction"])
        if self._relative is not None:
            same = state.get("relative", self._relative) == self._relative
            self._margin.copy_(state["margin"]) if same else self._margin.fill_(math.nan)
        self.watch.load_state_dict({name.removeprefix("watch."): value for name, value in state.items()})


_MAY_LACK = {"pace", "relative", "watch.widest"}
"""Keys that a state may lack: of another kind of pace, or saved by an earlier version."""
