"""Kills: real commands ended at random moments, by one signal or another, and started again until they are done."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign.forked import Ending, Running
from campaign.interface import BrokenPromiseError
from campaign.jobs import JOBS, PATIENCE, Place, prepare

__all__ = ["CASES", "LIMITS", "MEANS", "PROMISE", "attempt", "prepare"]

PROMISE = (
    "However and whenever a command is stopped, give it again and it continues and ends with the result of an "
    "uninterrupted run. That means the same weights (on a CPU bit for bit), every trial complete and there exactly "
    "once, the same pages, pairs and caches, and no temporary file left behind. The command says what it found and "
    "where it continues. Ctrl-C and SIGTERM end it with one clear line."
)
MEANS = (
    "Small real commands are stopped at a random moment: training (IPG with sparse corrections, a method of two "
    "stages, a joint one), decoding images into the cache, building pairs, writing a report, a study with two worker "
    "processes, a search kept in a file or in PostgreSQL, and two processes under torchrun. Most are stopped by "
    "SIGKILL, the others by SIGTERM or by pressing Ctrl-C once or twice. In a study the signal goes to the command, "
    "to one worker or to all of them; under torchrun it goes to one process or to all. One case in three is stopped a"
    " second time. Then the command runs until it finishes, and its results are compared with those of an "
    "uninterrupted run. To save time, most cases fork a process that has everything imported; one in ten, and all "
    "studies and runs under torchrun, start a new one."
)
LIMITS = (
    "On a GPU without `--deterministic`, and on several processes with a network that draws random numbers, the bits "
    "may differ. A signal that comes before the program has started gets no message. What a machine had not yet "
    "written to disk is lost when its power fails. If torchrun itself is killed, its processes do not stop at once: "
    "those that train save and stop within seconds, and those that wait for each other give up after five minutes."
)
CASES = 200

WEIGHTS = {
    "ipg": 18, "two stages": 14, "joint": 14, "pairs": 12, "cache": 10, "report": 8, "search": 8, "runner": 6,
    "database": 5, "ranks": 5,
}  # fmt: skip
"""Of a hundred cases so many are of each job."""
SIGNALS = ("SIGKILL",) * 6 + ("SIGTERM",) * 2 + ("Ctrl-C", "Ctrl-C twice")
REAL, IMPORTS = 0.1, 3.0
"""The share of programs of their own among what could be forked, and about how many seconds they take to begin."""
ATTEMPTS = 10
"""So many times at most a command is run until it is done."""
TARGETS = {"runner": ("group", "leader", "child"), "ranks": ("group", "child")}
"""What a kill may hit, where a command has several processes."""
LINGER = 400
"""Seconds that processes may outlive the one that was ended: ranks whose launcher is gone before they have met wait for
it for five minutes, from when they have begun."""
IN_USE = "is in use by another process"


@dataclass(frozen=True)
class Blow:
    """How a command is ended."""

    name: str
    target: str
    """The `group` of processes, its `leader` or a `child`."""
    moment: float
    """Share of the unbroken duration after which it comes."""
    gap: float
    """Seconds before the second Ctrl-C."""
    wait: bool
    """Whether the command is started again only when all processes of the one that was ended are gone."""


def attempt(place: Place, seed: int, number: int) -> str | None:
    """End a command, perhaps twice, run it until it is done, and compare."""
    draw = Random(f"{seed}/{number}")
    job = _schedule(place.jobs())[number % 100]
    real = bool(JOBS[job].launcher) or draw.random() < REAL
    blows = [_blow(draw, job) for _ in range(draw.choice((1, 1, 2)))]
    place.reference(job)
    try:
        _try(Case(place, job, real, f"case-{number}"), blows)
        wrong = None
    except BrokenPromiseError as error:
        wrong = str(error)
    finally:
        shutil.rmtree(place.root / f"case-{number}", ignore_errors=True)
    told = ", ".join(f"{blow.name} to the {blow.target} after {blow.moment:.3f}" for blow in blows)
    return None if wrong is None else f"{job}{' as a program' if real else ''}, {told}: {wrong}"


def _schedule(jobs: Sequence[str]) -> list[str]:
    """The jobs of a hundred cases, each spread evenly; those that take long and are few come late."""
    shares = {job: WEIGHTS[job] for job in jobs}
    shares["ipg"] += 100 - sum(shares.values())
    return [
        job for _, job in sorted(((turn + 1) / share, job) for job, share in shares.items() for turn in range(share))
    ]


def _blow(draw: Random, job: str) -> Blow:
    name = draw.choice(SIGNALS)
    targets = {"SIGKILL": TARGETS.get(job, ("leader",)), "SIGTERM": ("leader",)}.get(name, ("group",))
    return Blow(name, draw.choice(targets), draw.random(), draw.uniform(0.01, 0.5), draw.random() < 0.5)


def _try(case: Case, blows: Sequence[Blow]) -> None:
    """End the command as often as there are blows; the first of them has to come in time."""
    share = 1.0
    while not case.strike(blows[0], blows[0].moment * share):
        shutil.rmtree(case.folder)
        case.folder = case.place.folder(case.folder.parent.name, case.job)
        share /= 2
    for blow in blows[1:]:
        case.strike(blow, blow.moment)
    case.finish()
    if (wrong := case.place.compare(case.job, case.folder)) is not None:
        raise BrokenPromiseError(wrong)


class Case:
    """One command in a folder of its own, ended and started again."""

    def __init__(self, place: Place, job: str, real: bool, name: str) -> None:
        self.place, self.job, self.real, self.kind = place, job, real, JOBS[job]
        self.folder = place.folder(name, job)
        self.seconds = place.seconds[job] + (IMPORTS if real and not self.kind.launcher else 0)

    def strike(self, blow: Blow, moment: float) -> bool:
        """Start the command and end it; False where it has ended before."""
        wanted = self._found()
        running = self.place.begin(self.job, self.folder, real=self.real)
        if (ended := running.wait(moment * self.seconds)) is not None:
            self._check(ended, wanted)
            return False
        self._send(running, blow)
        if blow.name == "Ctrl-C twice" and running.wait(blow.gap) is None:
            self._send(running, blow)
        ended = self._end(running)
        self._check_answer(blow, ended)
        if blow.wait:
            self._wait_for_the_rest(running)
        return True

    def finish(self) -> None:
        """Run the command until it is done."""
        for _ in range(ATTEMPTS):
            wanted = self._found()
            running = self.place.begin(self.job, self.folder, real=self.real)
            ended = self._end(running)
            if self._check(ended, wanted):
                self._wait_for_the_rest(running)
                return
            time.sleep(1)
        raise BrokenPromiseError(f"is not done after {ATTEMPTS} times: {ended.out[-200:]} {ended.err[-200:]}")

    def _end(self, running: Running) -> Ending:
        if (ended := running.wait(PATIENCE)) is None:
            for pid in [running.pid, *alive(self.folder)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise BrokenPromiseError(f"does not end within {PATIENCE} s")
        return ended

    def _send(self, running: Running, blow: Blow) -> None:
        number = getattr(signal, blow.name, signal.SIGINT)
        children = sorted(set(alive(self.folder)) - {running.pid}) if blow.target == "child" else []
        with suppress(ProcessLookupError):
            if blow.target == "group" or (blow.target == "child" and not children):
                os.killpg(running.pid, number)
            else:
                os.kill(children[-1] if children else running.pid, number)

    def _found(self) -> list[str]:
        """What the command that is started now has to say; nothing while another is still at work there."""
        return [] if alive(self.folder) else self.kind.found(self.folder)

    def _check(self, ended: Ending, wanted: Sequence[str]) -> bool:
        """Whether a command that nobody has ended is done with its job."""
        if ended.code == 0:
            if missing := [text for text in wanted if not re.search(text, ended.out)]:
                raise BrokenPromiseError(f"does not say {missing[0]!r}: {ended.out[:200]!r}")
            return re.search(self.kind.whole, ended.out) is not None
        if IN_USE not in ended.err:
            raise BrokenPromiseError(f"exit {ended.code}: {ended.err[-300:]}")
        return False

    def _check_answer(self, blow: Blow, ended: Ending) -> None:
        """A signal that a program hears is answered by one line, and no traceback."""
        if self.job == "ranks":
            return  # torchrun speaks
        if blow.name == "SIGKILL" or ended.code == 0:
            if ended.code not in (0, -signal.SIGKILL):
                raise BrokenPromiseError(f"exit {ended.code}: {ended.err[-300:]}")
            return
        number = getattr(signal, blow.name, signal.SIGINT)
        if ended.code == -number and not ended.err and (number == signal.SIGTERM or not ended.out):
            return  # nothing was begun yet that it would have to save
        lines = [line for line in ended.err.splitlines() if line]
        interrupted = (130, -signal.SIGINT)  # a shell shows both as 130; Python may take the second
        if ended.code not in interrupted or len(lines) != 1 or not lines[0].startswith("ipg: "):
            raise BrokenPromiseError(f"answers {blow.name} with exit {ended.code}: {ended.err[-300:]!r}")

    def _wait_for_the_rest(self, running: Running) -> None:
        """Processes that outlive the one that was ended have to notice."""
        until = time.monotonic() + LINGER
        while left := alive(self.folder):
            if time.monotonic() > until:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise BrokenPromiseError(f"{len(left)} processes go on without end")
            time.sleep(0.05)


def alive(folder: Path) -> list[int]:
    """Processes that work for a command in `folder`, told by the cache that they were given."""
    mark = f"IPG_CACHE={folder / 'cache'}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                mark in (place / "environ").read_bytes().split(b"\0")
                and b"resource_tracker" not in (place / "cmdline").read_bytes()
            ):
                found.append(int(place.name))
    return found
