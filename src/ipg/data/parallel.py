"""Work on many files with all cores, in order and without running far ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ipg.data.errors import ProblemsError

__all__ = ["Progress", "carry_out", "cores", "in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with how many files are done and how many there are."""
AHEAD = 8
"""Results a thread that may wait to be taken."""


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of `work` in the order of `items`, by threads: Pillow, zlib and files let go of Python's lock.

    Who stops taking, be it by Ctrl-C, waits for the few that are under way alone.
    """
    workers = cores()
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def carry_out(work: Callable[[Item], str | None], items: Collection[Item], progress: Progress | None = None) -> None:
    """Have `work` done on all `items`, by threads, and tell of every one that is done.

    Raises:
        ProblemsError: some could not be done; `work` says why.
    """
    problems = []
    for done, problem in enumerate(in_order(work, items), 1):
        problems += [problem] if problem else []
        if progress is not None:
            progress(done, len(items))
    if problems:
        raise ProblemsError(problems)


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # fewer than the machine has, in containers
    return len(affinity(0)) if affinity else os.cpu_count() or 1
