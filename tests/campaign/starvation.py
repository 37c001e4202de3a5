"""Starvation: what a command lives on runs out or is taken away, and given back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign import shortages
from campaign.accidents import ACCIDENTS, AGES
from campaign.database import PASSWORD
from campaign.forked import Ending
from campaign.interface import BrokenPromiseError
from campaign.jobs import PATIENCE, Place, prepare
from campaign.same import content

__all__ = ["CASES", "LIMITS", "MEANS", "PROMISE", "attempt", "prepare"]

PROMISE = (
    "When the disk, the memory, a GPU, a database or the data run out, a command ends with exit status 2 and at most "
    "five clear lines, without a traceback, and keeps what it had. Once the missing resource is back, the same "
    "command continues and ends with the result of an undisturbed run."
)
MEANS = (
    "Training, decoding, building pairs, reports and searches each meet one of these: a disk that is full after a "
    "random number of bytes, a random limit on the size of files or on memory, a read-only mount or folder, a data "
    "file that disappears or changes between two runs, PostgreSQL stopped and restarted at a random moment of a "
    "search, a GPU with too little memory (simulated; the message has to name a batch that fits), `--device cuda` "
    "without a GPU, or run folders that earlier versions left. Then the command runs again with everything it needs, "
    "and its results are compared with those of an undisturbed run."
)
LIMITS = (
    "If the operating system or a library ends the process for lack of memory, there is no message; that counts as a "
    "kill. When space runs out in a search, any of its trials may fail; others take their place."
)
CASES = 132


@dataclass
class Case:
    """One job, starved in a folder of its own."""

    place: Place
    draw: Random
    name: str
    job: str = "ipg"

    def folder(self, job: str, inner: str = "") -> Path:
        """Its folder, in which nothing is done yet."""
        self.job = job
        self.place.reference(job)
        return self.place.folder(f"{self.name}{inner}", job)

    def starve(self, folder: Path, says: str, first: Callable[[], object] = lambda: None) -> Ending:
        """Run the job where something is missing: it ends well, or says so."""
        return self.check(self.run(folder, first), says)

    def check(self, ended: Ending, says: str, *, well: bool = True) -> Ending:
        """One to five lines that say what the pattern `says`; with `well`, it may also have ended so."""
        if PASSWORD in ended.out + ended.err:
            raise BrokenPromiseError("gives the password away")
        if ended.code == 0 and well:
            return ended
        lines = [line for line in ended.err.splitlines() if line]
        if ended.code != 2 or not 1 <= len(lines) <= 5 or not all(line.startswith("ipg: ") for line in lines):
            raise BrokenPromiseError(f"exit {ended.code}: {ended.err[-400:]!r}")
        if not re.search(says, ended.err, re.IGNORECASE):
            raise BrokenPromiseError(f"does not say {says!r}: {ended.err[:300]!r}")
        return ended

    def recover(self, folder: Path, part: str | None = "") -> None:
        """Run the job again with all it needs, and compare a part of what it leaves, or all; nothing for None."""
        ended = self.run(folder)
        if ended.code != 0:
            raise BrokenPromiseError(f"does not go on: exit {ended.code}: {ended.err[-400:]!r}")
        if part is not None and (wrong := self.place.compare(self.job, folder, part)) is not None:
            raise BrokenPromiseError(wrong)
        if parts := list(folder.rglob(".*.tmp")):
            raise BrokenPromiseError(f"left {parts[0].name}")

    def stop(self, folder: Path) -> None:
        """Let the job get somewhere, and ask it to stop."""
        running = self.place.begin(self.job, folder)
        while (ended := running.wait(0.01)) is None and not (folder / "run" / "metrics.jsonl").exists():
            pass
        if ended is None:
            os.kill(running.pid, signal.SIGTERM)
            running.wait()

    def run(self, folder: Path, first: Callable[[], object] = lambda: None, *, real: bool = False) -> Ending:
        """Run the job to its end, perhaps as a program of its own; `first` is called in its process before."""
        running = self.place.begin(self.job, folder, real=real, first=lambda: (os.setsid(), first()))
        if (ended := running.wait(PATIENCE)) is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            raise BrokenPromiseError(f"does not end within {PATIENCE} s")
        return ended


# -- kinds ----------------------------------------------------------------------------------------------------------

WRITERS = ("ipg", "two stages", "joint", "pairs", "cache", "report", "search")
REAL = 0.3
"""The share of programs of their own under a limit on all memory that they map."""
FULL = "no space left|too full|trials in a row have failed"


def _disk(case: Case) -> None:
    job = case.draw.choice(WRITERS)
    wanted = sum(file.stat().st_size for file in case.place.reference(job).rglob("*") if file.is_file())
    with shortages.disk(case.place.root / case.name, size=4096 + int(case.draw.random() * 1.2 * wanted)) as again:
        folder = case.folder(job)
        case.starve(folder, FULL)
        again("size=1g")
        case.recover(folder, None if job == "search" else "")


def _file_size(case: Case) -> None:
    job = case.draw.choice(WRITERS)
    largest = max(file.stat().st_size for file in case.place.reference(job).rglob("*") if file.is_file())
    limit = 1000 + int(case.draw.random() * largest)
    folder = case.folder(job)
    case.starve(folder, "file too large|trials in a row have failed", shortages.files(limit))
    case.recover(folder, None if job == "search" else "")


def _memory(case: Case) -> None:
    job = case.draw.choice(WRITERS[:-1])
    folder, more = case.folder(job), case.draw.random()
    if case.draw.random() < REAL:
        ended = case.run(folder, shortages.address_space(int((0.3 + 6 * more) * 1e9)), real=True)
    else:
        ended = case.run(folder, shortages.memory(int(60e6 * more)))
    if ended.code != -signal.SIGABRT or "bad_alloc" not in ended.err:  # by a library, which nobody can answer
        case.check(ended, "memory")
    case.recover(folder)


def _gpu_memory(case: Case) -> None:
    fits, after = case.draw.randrange(8), case.draw.randrange(60)
    folder = case.folder(case.draw.choice(("ipg", "two stages", "joint")))
    named = rf"--batch {1 << fits.bit_length() - 1} fits" if fits else "lower"
    case.check(case.run(folder, shortages.gpu(fits, after)), f"out of memory with --batch 8; .*{named}", well=False)
    case.recover(folder)


def _read_only(case: Case) -> None:
    with shortages.disk(case.place.root / case.name, size=1 << 26) as again:
        folder = case.folder(case.draw.choice(WRITERS[:-1]))
        if case.job in ("ipg", "two stages", "joint") and case.draw.random() < 0.5:
            case.stop(folder)
        if case.draw.random() < 0.5:
            with shortages.read_only(folder):
                ended = case.run(folder, shortages.privileges)
        else:
            again("ro")
            ended = case.run(folder)
            again("rw")
        case.check(ended, "read-only|permission denied|cannot be kept", well=False)
        case.recover(folder)


def _data(case: Case) -> None:
    shutil.copytree(case.place.root / "seeds", case.place.root / case.name / "seeds")
    folder = case.folder(case.draw.choice(("ipg", "joint")), "/inner")
    case.stop(folder)
    seeds = folder.parents[1] / "seeds"
    kept = shutil.copytree(seeds, seeds.with_name("kept"))
    says = case.draw.choice(ACCIDENTS)(case.draw, seeds)
    case.check(case.run(folder), f"{says}|have changed since it began", well=False)
    shutil.rmtree(seeds)
    kept.rename(seeds)
    case.recover(folder, "run")


def _database(case: Case) -> None:
    server = case.place.server
    assert server is not None  # else there are no such cases
    folder = case.folder("database")
    running = case.place.begin("database", folder)
    running.wait(case.draw.random() * case.place.seconds["database"])
    server.stop(case.draw.choice((signal.SIGINT, signal.SIGQUIT)))
    time.sleep(case.draw.choice((0, 0.2, 2)))
    try:
        ended = running.wait(PATIENCE) if case.draw.random() < 0.7 else None
    finally:
        server.start()
    ended = ended or running.wait(PATIENCE)
    if ended is None:
        os.killpg(running.pid, signal.SIGKILL)
        raise BrokenPromiseError("does not end without its database")
    case.check(ended, "the database .* cannot be used")
    case.recover(folder)


def _no_gpu(case: Case) -> None:
    folder = case.folder(case.draw.choice(("ipg", "two stages", "joint", "report", "search")))
    line = [word for word in case.place.line(case.job) if word not in ("--device", "cpu")]
    ended = case.place.run([*line, "--device", "cuda"], folder).wait(PATIENCE)
    assert ended is not None
    case.check(ended, "device 'cuda' is asked for and torch sees none here; use --device cpu", well=False)
    case.recover(folder)


def _older(case: Case) -> None:
    """A run of an earlier version: finished, or stopped midway."""
    folder = case.folder(case.draw.choice(("ipg", "joint")))
    if finished := case.draw.random() < 0.5:
        shutil.copytree(case.place.reference(case.job), folder, dirs_exist_ok=True)
    else:
        case.stop(folder)
    case.draw.choice(AGES)(case.draw, folder / "run")
    readers = [
        ["report", "run", "--output", "page.html"],
        ["evaluate", "run"],
        ["predict", "run", "../../seeds/photos"],
    ]
    if finished and case.draw.random() < 0.6:
        ended = case.place.run([*case.draw.choice(readers), "--device", "cpu"], folder).wait(PATIENCE)
        if ended is None or ended.code != 0:
            raise BrokenPromiseError(f"is not read: {ended}")
        return
    if (ended := case.run(folder)).code != 0:
        raise BrokenPromiseError(f"does not go on: exit {ended.code}: {ended.err[-400:]!r}")
    model = Path("run") / "model.safetensors"
    if content(folder / model) != content(case.place.reference(case.job) / model):
        raise BrokenPromiseError("goes on to other weights")


KINDS: dict[str, tuple[int, Callable[[Case], None]]] = {
    "disk full": (5, _disk),
    "files too large": (3, _file_size),
    "too little memory": (3, _memory),
    "too little GPU memory": (2, _gpu_memory),
    "read-only": (2, _read_only),
    "other data": (3, _data),
    "database stopped": (1, _database),
    "no GPU": (1, _no_gpu),
    "older run": (2, _older),
}
"""What is missing, in how many cases of twenty-two, and how it is tried."""


def attempt(place: Place, seed: int, number: int) -> str | None:
    """Take something away, run a command, give it back and run the command again."""
    kinds = _possible(place)
    kind = kinds[number % len(kinds)]
    case = Case(place, Random(f"{seed}/{number}"), f"case-{number}")
    try:
        KINDS[kind][1](case)
    except BrokenPromiseError as error:
        return f"{kind}, {case.job}: {error}"
    finally:
        shutil.rmtree(place.root / case.name, ignore_errors=True)
    return None


def _possible(place: Place) -> list[str]:
    """The kinds that can be tried here, each as often as it counts, the first of each kind first."""
    import torch

    missing = {"database stopped"} if place.server is None else set()
    missing |= {"no GPU"} if torch.cuda.is_available() else set()
    missing |= set() if shortages.may_mount(place.root) else {"disk full", "read-only"}
    turns = [(turn, kind) for kind, (share, _) in KINDS.items() for turn in range(share) if kind not in missing]
    return [kind for _, kind in sorted(turns, key=lambda turn: turn[0])]
