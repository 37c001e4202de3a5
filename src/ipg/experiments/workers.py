"""Worker processes on one machine: each does trials until there are none; one whose process dies goes on in another.

Importing this module is cheap, since every worker begins with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from ipg.data.parallel import cores
from ipg.data.remembering import remembering
from ipg.experiments.attempt import Ended, Job

if TYPE_CHECKING:
    from ipg.experiments.progress import View
    from ipg.experiments.study import Trial

__all__ = ["Workers", "gpu_of", "sharing", "suitable_workers"]

MOST_DEATHS = 3
"""After so many processes have died at one trial it is given up."""
GRACE_SECONDS = 120.0
"""How long a worker that is asked to stop may take over its checkpoint."""


def suitable_workers(device: str) -> int:
    """A GPU each; without GPUs half the cores, two threads each.

    Further processes on a GPU gain nothing, but for small networks where `mps.side_by_side` lets them run at once.
    """
    from ipg.training.device import resolve_device

    kind = resolve_device(device).type
    if kind == "cuda":
        import torch

        return torch.cuda.device_count()
    return 1 if kind == "mps" else max(1, cores() // 2)


def sharing(count: int, device: str) -> int:
    """How many of so many processes a GPU has; 1 without GPUs, where each has cores of its own."""
    from ipg.training.device import resolve_device

    return 1 if resolve_device(device).type == "cpu" else -(-count // suitable_workers(device))


def gpu_of(slot: int, device: str) -> str | None:
    """The GPU that the worker in this slot has to itself, as `CUDA_VISIBLE_DEVICES` names it; None without GPUs."""
    import torch

    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    names = visible.split(",")
    return names[slot % len(names)]


class _Worker:
    """A process, and the trial it has in hand."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.trial: Trial | None = None


class Workers:
    """So many processes, started when there is something to do for them."""

    def __init__(self, job: Job, view: View, count: int, *, device: str = "auto") -> None:
        self.job, self.view, self.count, self.device = job, view, count, device
        self._slots: dict[int, _Worker] = {}
        self._deaths: Counter[str] = Counter()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Dismiss the workers; those with a trial in hand are asked to save it."""
        try:
            for worker in self._slots.values():
                if worker.trial is not None:
                    worker.process.terminate()
                with suppress(OSError):
                    worker.pipe.send(None)
            for worker in self._slots.values():
                worker.process.join(GRACE_SECONDS)
        finally:  # also where Ctrl-C comes once more
            for worker in self._slots.values():
                worker.process.kill()
                worker.process.join()
                worker.pipe.close()

    def run(self, trials: Iterable[Trial]) -> Iterator[Ended]:
        """Have all trials attempted; each is asked for when a worker is free, and reported once."""
        lost: deque[Trial] = deque()
        coming = iter(trials)
        while True:
            self._hand_out(lost, coming)
            busy = {slot: worker.trial for slot, worker in self._slots.items() if worker.trial is not None}
            if not busy:
                return
            ready = wait([self._slots[slot].pipe for slot in busy])
            for slot, trial in busy.items():
                worker = self._slots[slot]
                if worker.pipe not in ready:
                    continue
                try:
                    said: float | Ended = worker.pipe.recv()
                except (EOFError, OSError):
                    del self._slots[slot]
                    yield from self._lost(worker, trial, lost)
                    continue
                if isinstance(said, Ended):
                    worker.trial = None
                    yield said
                else:
                    self.view.moved(trial.key, said)

    def _hand_out(self, lost: deque[Trial], coming: Iterator[Trial]) -> None:
        """Give every idle worker a trial, those first whose process has died; workers are started as needed."""
        for slot in range(self.count):
            worker = self._slots.get(slot)
            if worker is not None and worker.trial is not None:
                continue
            trial = lost.popleft() if lost else next(coming, None)
            if trial is None:
                return
            if worker is None or not worker.process.is_alive():
                worker = self._slots[slot] = self._start(slot)
            worker.trial = trial
            self.view.started(worker.trial)
            with suppress(OSError):  # it has just died: its pipe will say so
                worker.pipe.send(worker.trial)

    def _start(self, slot: int) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        ours, theirs = context.Pipe()
        threads = max(1, cores() // self.count)
        process = context.Process(target=work, args=(theirs, gpu_of(slot, self.device), threads), daemon=True)
        with _shielded():
            process.start()
        theirs.close()
        with suppress(OSError):
            ours.send(self.job)
        return _Worker(process, ours)

    def _lost(self, worker: _Worker, trial: Trial, lost: deque[Trial]) -> Iterator[Ended]:
        """A process has died: its trial is next for another one, but not without end."""
        worker.pipe.close()
        worker.process.join()
        self._deaths[trial.key] += 1
        how = _cause(worker.process.exitcode)
        if self._deaths[trial.key] < MOST_DEATHS:
            self.view.lost(trial, f"its process {how}; another goes on with it")
            lost.append(trial)
            return
        line = f"{MOST_DEATHS} processes died at it, the last {how}"
        with self.job.store_of(trial).claim(trial.key) as mine:
            yield self.job.failed(trial, f"{line}\n", line) if mine else Ended(trial.key, "elsewhere")


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with status {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"


@contextmanager
def _shielded() -> Iterator[None]:
    """A process that is started inside never sees Ctrl-C: the runner does, and asks its workers to stop."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it is started below, and lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the worker -----------------------------------------------------------------------------------------------------


def work(pipe: Connection, gpu: str | None, threads: int) -> None:
    """Attempt the trials that come through the pipe, until None does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_stop_when_orphaned, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with suppress(KeyboardInterrupt):  # we are asked to stop
        job: Job | None = _hear(pipe)
        if job is None:
            return
        _use_threads(threads)
        with remembering():
            while (trial := _hear(pipe)) is not None:
                _tell(pipe, job.attempt(trial, lambda share: _tell(pipe, share)))


def _use_threads(most: int) -> None:
    import torch

    torch.set_num_threads(min(most, torch.get_num_threads()))


def _hear(pipe: Connection) -> Any:
    """What the runner sends; None where it is gone."""
    with suppress(EOFError, OSError):
        return pipe.recv()
    return None


def _tell(pipe: Connection, what: float | Ended) -> None:
    with suppress(OSError):  # the runner is gone
        pipe.send(what)


def _stop_when_orphaned() -> None:
    """A worker whose runner was killed saves its trial and ends."""
    if (runner := multiprocessing.parent_process()) is not None:
        runner.join()
        os.kill(os.getpid(), signal.SIGTERM)
