"""The same bits: a training started again, here or in other surroundings, ends with the weights that it ended with."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from campaign import world
from campaign.same import difference

PROMISE = (
    "On one machine and with the same number of threads, training again gives the same weights and metrics bit for "
    "bit, whatever the folder, the locale, the time zone and the seed of Python's hashes."
)
MEANS = (
    "A small training run with each of IPG, plain training, joint, GroupDRO and JTT (which has two stages), with one "
    "thread and with two, twenty times each in a process of its own. Every second run starts in another folder and "
    "locale, in another time zone and with another seed of hashes. Everything that a run writes is compared with the "
    "first run: weights, checkpoints, metrics by epoch and result, but for dates and durations."
)
LIMITS = (
    "Bits may differ between one thread and two, between two machines, and between two versions of PyTorch, because "
    "sums are then taken in another order. On a GPU they may differ without `--deterministic`. A locale that the "
    "machine lacks was tested as the locale C."
)
METHODS = ("ipg", "erm", "joint", "groupdro", "jtt")
THREADS = (1, 2)
REPEATS = 20
CASES = REPEATS * len(METHODS) * len(THREADS)
IMAGES = 96
LINE = ("--size", "16", "--model", "small_cnn", "--epochs", "2", "--steps", "6", "--batch", "64", "--pair-batch", "16",
        "--every", "2", "--device", "cpu", "--seed", "5", "--output", "run")  # fmt: skip
LOCALES = ("C", "POSIX", "C.UTF-8", "de_DE.UTF-8", "tr_TR.UTF-8", "ja_JP.UTF-8")
ZONES = ("UTC", "Asia/Kolkata", "America/St_Johns", "Pacific/Kiritimati")
FOLDERS = ("plain", "with a blank", "ünïcödé", "deep/down/here")


@dataclass
class World:
    """Where trainings happen, and what the first of each kind left."""

    root: Path
    digests: dict[str, dict[int, str]] = field(default_factory=dict)
    """SHA-256 of the weights by method and number of threads."""


def prepare(folder: Path) -> World:
    """Make the images; the first run of each kind is made when it is needed."""
    (folder / "data").mkdir()
    world.pictures(folder / "data", IMAGES)
    return World(folder)


def attempt(here: World, seed: int, number: int) -> str | None:
    """Train again, and compare."""
    rest, which = divmod(number, len(METHODS))
    repeat, many = divmod(rest, len(THREADS))
    method, threads = METHODS[which], THREADS[many]
    reference = here.root / f"{method}-{threads}"
    if not reference.exists():
        train(reference, here.root / "data", method, threads, {})
        here.digests.setdefault(method, {})[threads] = digest(reference / "run")
    draw = Random(f"{seed}/{number}")
    home = here.root / "case"
    place, around = (home / draw.choice(FOLDERS), surroundings(draw)) if repeat % 2 else (home, {})
    try:
        train(place, here.root / "data", method, threads, around)
        wrong = difference(place / "run", reference / "run")
    finally:
        shutil.rmtree(home)
    said = ", ".join(f"{name}={value}" for name, value in around.items())
    return None if wrong is None else f"{method}, {threads} threads, {said or 'as before'}: {wrong}"


def surroundings(draw: Random) -> dict[str, str]:
    """What may differ where a training is started."""
    return {
        "LC_ALL": draw.choice(LOCALES),
        "TZ": draw.choice(ZONES),
        "PYTHONHASHSEED": str(draw.randrange(1 << 32)),
    }


def train(folder: Path, data: Path, method: str, threads: int, around: dict[str, str]) -> None:
    """A small training in `folder` on the images in `data`."""
    folder.mkdir(parents=True)
    fixed = {"IPG_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(threads)}
    run = [sys.executable, "-m", "ipg", "train", "--method", method, *LINE]
    run += ["--data", str(data / "photos.csv"), "--pairs", str(data / "pairs.csv")]
    done = subprocess.run(
        run, cwd=folder, env=os.environ | fixed | around, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise RuntimeError(f"ipg train --method {method} failed with {around}:\n{done.stderr}")


def digest(run: Path) -> str:
    """What the final weights are known by."""
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def facts(here: World) -> dict[str, Any]:
    """What the row keeps beside the number of cases."""
    return {"weights": {method: list(found.values()) for method, found in here.digests.items()}}


def shown(row: dict[str, Any]) -> str:
    """Whether one thread and two agreed, which is not promised."""
    both = {method: len(set(found)) == 1 for method, found in row["weights"].items() if len(found) > 1}
    words = {True: "the same bits", False: "different bits"}
    told = [f"{words[same]} with {', '.join(names)}" for same in (True, False) if (names := _where(both, same))]
    return f"One thread and two gave {' and '.join(told)}." if told else ""


def _where(both: dict[str, bool], same: bool) -> list[str]:
    return [method for method, found in both.items() if found == same]
