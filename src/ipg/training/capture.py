"""Whole iterations as CUDA graphs: both updates, the optimizer and the gather of the batch in one launch.

A graph is captured for each kind of step (with and without a correction) after a few real iterations of that kind.
Once there are graphs of full batches, the last, smaller batch of an epoch has its own after one such iteration; nothing
is compiled for it. All graphs share one memory pool. A model or optimizer that cannot be captured falls back to running
as written, and says so; where that shows with a smaller batch alone, only batches of that length do. After an attempt
that fails nothing of torch's state that captures share is used again: the other graphs are captured anew.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from ipg.data.batches import Batches
from ipg.evaluation.parts import free_memory
from ipg.methods.base import Method
from ipg.training.stepping import EagerStep, Means, PairFeed

__all__ = ["CapturedStep"]

WARM_UP = 3
"""Real iterations of a kind before it is captured: they settle the optimizer's state and the libraries' workspaces."""
WARM_UP_SMALLER = 1
"""Those of a smaller batch, when full ones have settled all that does not depend on its length."""
LENGTHS = 2
"""How many lengths of smaller batches have graphs; an epoch has one, unless the images that are drawn change."""
REHEARSAL = 4 * (WARM_UP + 2)
"""Iterations that show what memory a run takes: both kinds are captured where a correction comes every fourth step."""
REHEARSAL_SMALLER = 4 * (WARM_UP_SMALLER + 1)
"""Those of a smaller batch, likewise."""

Kind = tuple[int, bool]
"""What a graph is of: the length of the batch, and whether there is a correction."""


class CapturedStep(EagerStep):
    """Runs batches from CUDA graphs."""

    def __init__(self, method: Method, batches: Batches, feed: PairFeed | None, means: Means) -> None:
        super().__init__(method, batches, feed, means)
        self._device = batches.table.label.device
        self._stream = _side_stream(self._device)
        self._begin(batches.batch_size)
        self._rehearsing = False
        self.preparing = 0.0
        """Seconds spent on iterations before a capture, compiling among them, on captures, and on what else is
        `timed`."""

    def _begin(self, full: int) -> None:
        """Forget all graphs; from now on `full` is the length of batches but the last of an epoch."""
        self._full = full
        self._rows = {full: torch.zeros(full, dtype=torch.int64, device=self._device)}
        self._graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self._seen: Counter[Kind] = Counter()
        self._possible = True
        self._written: set[int] = set()

    def __call__(self, rows: Tensor) -> None:
        """One iteration, replayed where it can be."""
        if not self._possible:
            super().__call__(rows)
        elif len(rows) == self._full:
            self._captured(rows, warm_up=WARM_UP)
        else:
            with torch.compiler.set_stance("force_eager"):  # a shape of its own is not worth compiling
                if self._has_graphs(len(rows)):
                    self._captured(rows, warm_up=WARM_UP_SMALLER)
                else:
                    super().__call__(rows)

    def _has_graphs(self, length: int) -> bool:
        """Whether a batch smaller than the others has graphs of its own, or is to have them: full ones come first."""
        if length in self._written or not self._graphs:
            return False
        return length in self._rows or len(self._rows) <= LENGTHS  # the full one is among them

    def _captured(self, rows: Tensor, *, warm_up: int) -> None:
        """One iteration from the graph of its kind, which is captured after as many real ones as it takes."""
        self.draw()
        length = len(rows)
        place = self._rows.setdefault(length, torch.zeros_like(rows))
        place.copy_(rows)
        kind, iteration = (length, self.method.due), self.method.iteration
        if kind not in self._graphs:
            with self.timed():
                if self._seen[kind] < warm_up:
                    self._seen[kind] += 1
                    self._aside(place)
                    return
                captured = self._capture(kind)
            self.method.iteration = iteration
            if not captured:
                free_memory()  # of the attempt, without which the step may fit
                self.step(place)
                return
        self._graphs[kind].replay()
        self.method.replayed()

    def rehearse(self, rows: Tensor) -> None:
        """As `EagerStep.rehearse`, captures included, which keep memory for themselves; nothing is compiled for it.

        A capture that lacks memory is an error here: the batch would fit, but only as written, which takes longer.
        """
        self._begin(len(rows))
        self._rehearsing = True
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be captured, which the run itself will say
            for _ in range(REHEARSAL):
                self(rows)
            for _ in range(REHEARSAL_SMALLER if len(rows) > 1 else 0):
                self(rows[:-1])  # the last of an epoch, beside what the graphs keep

    def release(self) -> None:
        """Give back what graphs keep: whoever holds on to the error would hold on to it, too."""
        self._begin(self._full)
        free_memory()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what happens inside as preparation."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.preparing += time.perf_counter() - start

    def _aside(self, rows: Tensor) -> None:
        """A real iteration on the stream that the capture will use."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self.step(rows)
        current.wait_stream(self._stream)

    def _capture(self, kind: Kind) -> bool:
        """Record one kind of step without running it; False, with a notice, where that cannot be done."""
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        length = kind[0]
        try:
            # only this thread is held to what a capture allows: another may be gathering images
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                self.step(self._rows[length])
        except RuntimeError as error:
            graph.reset()
            self._give_up(length)
            if self._rehearsing and isinstance(error, torch.OutOfMemoryError):
                raise
            what = "this step" if length == self._full else f"the step of a batch of {length}"
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"{what} cannot be captured as a CUDA graph and runs as written: {reason}", stacklevel=4)
            return False
        self._graphs[kind] = graph
        return True

    def _give_up(self, length: int) -> None:
        """Run batches of this length as written from now on; where it is that of full ones, all batches.

        Torch may take a capture that failed for one that goes on: in its pool, from which no other can begin, and in
        its generator, which then refuses to draw outside of it, also for graphs that were captured before.
        """
        self._written.add(length)
        self._possible = length != self._full
        self._graphs = {}  # others are captured again when their turn comes, in a new pool
        generator = torch.cuda.default_generators[self._device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that iterations are captured on: one for all runs, as cuBLAS keeps a workspace for each it has met."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
