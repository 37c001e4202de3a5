"""Whole iterations as CUDA graphs: both updates, the optimizer and the gather of the batch in one launch.

A graph is captured for each kind of step (with and without a correction) after a few real iterations of that kind;
the two share one memory pool. The last, smaller batch of an epoch runs as written, also where the network is
compiled. A model or optimizer that cannot be captured falls back to running as written, and says so.
"""

from __future__ import annotations

import time
import warnings
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
REHEARSAL = 4 * (WARM_UP + 2)
"""Iterations that show what memory a run takes: both kinds are captured where a correction comes every fourth step."""


class CapturedStep(EagerStep):
    """Runs full batches from CUDA graphs."""

    def __init__(self, method: Method, batches: Batches, feed: PairFeed | None, means: Means) -> None:
        super().__init__(method, batches, feed, means)
        device = batches.table.label.device
        self._rows = torch.zeros(batches.batch_size, dtype=torch.int64, device=device)
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._seen = {False: 0, True: 0}
        self._stream = _side_stream(device)
        self._possible = True
        self.preparing = 0.0
        """Seconds spent on iterations before the capture, compiling among them, on the capture, and on what else is
        `timed`."""

    def __call__(self, rows: Tensor) -> None:
        """One iteration, replayed where it can be."""
        if not self._possible:
            super().__call__(rows)
            return
        if len(rows) != len(self._rows):
            with torch.compiler.set_stance("force_eager"):  # a shape of its own is not worth compiling
                super().__call__(rows)
            return
        self.draw()
        self._rows.copy_(rows)
        due, iteration = self.method.due, self.method.iteration
        if due not in self._graphs:
            with self.timed():
                if self._seen[due] < WARM_UP:
                    self._seen[due] += 1
                    self._aside()
                    return
                captured = self._capture(due)
            self.method.iteration = iteration
            if not captured:
                free_memory()  # of the attempt, without which the step may fit
                self.step(self._rows)
                return
        self._graphs[due].replay()
        self.method.replayed()

    def rehearse(self, rows: Tensor) -> None:
        """As above, captures included, which keep memory for themselves; nothing is compiled for it."""
        self._rows, self._possible = torch.zeros_like(rows), True
        self._graphs.clear()
        self._seen = {False: 0, True: 0}
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be captured, which the run itself will say
            for _ in range(REHEARSAL):
                self(rows)
            if len(rows) > 1:
                self(rows[:-1])  # the last of an epoch, beside what the graphs keep

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what happens inside as preparation."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.preparing += time.perf_counter() - start

    def _aside(self) -> None:
        """A real iteration on the stream that the capture will use."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self.step(self._rows)
        current.wait_stream(self._stream)

    def _capture(self, due: bool) -> bool:
        """Record one kind of step without running it; False, with a notice, where that cannot be done."""
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        try:
            # only this thread is held to what a capture allows: another may be gathering images
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                self.step(self._rows)
        except RuntimeError as error:
            self._possible = False
            self._graphs.clear()
            graph.reset()
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"this step cannot be captured as a CUDA graph and runs as written: {reason}", stacklevel=3)
            return False
        self._graphs[due] = graph
        return True


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that iterations are captured on: one for all runs, as cuBLAS keeps a workspace for each it has met."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
